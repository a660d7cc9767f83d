"""`nox -s micro` prints ratios in place of pytest-benchmark's columns of seconds, which belong to one machine."""

from ratios import lines


def pytest_terminal_summary(terminalreporter, config):
    terminalreporter.section("CPU seconds of a benchmark over those of something else")
    for line in lines(config._benchmarksession.benchmarks):
        terminalreporter.write_line(line)
