"""`nox -s micro` prints a table of ratios in place of pytest-benchmark's columns of seconds."""

from ratios import table


def pytest_terminal_summary(terminalreporter, config):
    session = config._benchmarksession
    found = [(one.name.removeprefix("test_case[").removesuffix("]"), one.extra_info) for one in session.benchmarks]
    if found:
        terminalreporter.section("CPU seconds of a benchmark over those of something else")
        for line in table(found):
            terminalreporter.write_line(line)
