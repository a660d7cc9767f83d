"""What people reported, and the test that takes their input as they gave it: ``python tests/field_cases.py TABLE``.

It runs these tests and writes of each case what was expected and what came of it.
"""

import csv
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
COLUMNS = ("about", "input", "expected", "outcome", "test")
AS_EXPECTED = "as expected"


class Case(NamedTuple):
    """One kind of report."""

    about: str
    input: str
    expected: str
    test: str
    """File in this folder and function; all of its parameters count."""


PLANNER, LIMITS, LOGS = "test_torchrec_drop_in.py", "test_torchrec_constraints.py", "test_access_log.py"
LISTS, AGAINST, CLI, LAUNCH = "test_table_list.py", "test_against.py", "test_cli.py", "test_launch.py"
CASES = (
    Case("model", "tables called _user, user:id, user@v1, emb/user, 'user id', 用户", "a plan of that name",
         f"{PLANNER}::test_a_table_may_have_any_name_that_torch_takes"),
    Case("model", "1,500 features of one table", "a plan",
         f"{PLANNER}::test_a_table_may_have_thousands_of_features"),
    Case("model", "Topology(world_size=8, local_world_size=2, pod_size=2), table_row_wise", "on the 4 ranks of a pod",
         f"{LIMITS}::test_a_pods_nodes_are_one_group"),
    Case("model", "53,333,333 of 100 M rows on rank 0 of 4", "refused by the table's name",
         "test_torchrec_planner.py::test_blocks_of_unlike_sizes_are_refused_by_name"),
    Case("model", "fused_params={'cache_load_factor': 0.9}", "a cache of 0.9",
         f"{LIMITS}::test_the_cache_of_a_sharder_is_kept"),
    Case("model", "managed collisions with the default buckets=1 on 4 ranks", "refused by the table's name",
         f"{LIMITS}::test_a_module_around_a_collection_is_planned_as_a_whole_or_refused"),
    Case("model", "a ValueError of TorchRec's planner; num_poolings of another length", "our plan; refused by name",
         f"{PLANNER}::test_what_torchrecs_planner_fails_at_does_not_end_ours"),
    Case("model", "column_wise tables of width 4, 20, 28, 44, 52, 76, 100, 124", "column_wise in one piece",
         f"{LIMITS}::test_a_table_that_cannot_be_halved_is_column_wise_in_one_piece"),
    Case("model", "lists and from_torchrec with tables called user:id, 'user id', 用户, ...", "written, read, planned",
         f"{LISTS}::test_any_name_is_listed_and_planned"),
    Case("model", "row_wise and same_device; data_parallel and uvm; column_wise and least_columns of more than half",
         "one line that names the two",
         "test_constrained.py::test_two_constraints_that_contradict_each_other_are_both_named"),
    Case("model", "data_parallel and fused_uvm in ParameterConstraints", "one line that names the two",
         f"{LIMITS}::test_constraints_that_cannot_be_kept_are_refused"),
    Case("model", "--against a plan of 768,000 bytes on a device of 767,000", "refused by the device",
         f"{AGAINST}::test_what_does_not_fit_or_breaks_a_constraint_is_refused"),
    Case("model", "variable batches, HashZch, ITEP, pipelines, LAMB and so on: the support table", "no cell wrong",
         "test_torchrec_cells.py::test_the_table_has_every_cell_for_every_release"),
    Case("model", "mean pooling; one input of two tables; a file for plan", "a list of tables, written",
         f"{LISTS}::test_tables_of_torchrec"),
    Case("model", "the arguments of TorchRec's planner, in its order", "used, passed on, or named in a line",
         f"{PLANNER}::test_it_takes_what_torchrecs_planner_takes"),
    Case("model", "TorchRec's printed statistics and its plan JSON", "read by --against",
         f"{AGAINST}::test_what_torchrecs_planner_prints_and_what_torchrec_writes_is_read"),
    Case("logs", "a folder, a pattern, Hive partitions", "one log with the columns that folders state",
         f"{LOGS}::test_folders_and_patterns_have_the_columns_that_their_names_state"),
    Case("logs", "s3://, an object store of the test's own", "as on disk",
         f"{LOGS}::test_a_log_in_an_object_store_is_one_on_disk"),
    Case("logs", "gs://, lists of a store that answers as Google's; nobody answers; reading was not seen",
         "Arrow's driver finds the files; a line within its limit",
         f"{LOGS}::test_googles_and_hadoops_addresses_are_asked_of_their_drivers"),
    Case("logs", "hdfs:// without Java; with it was not seen", "Arrow's driver is asked; one line that says what to do",
         f"{LOGS}::test_googles_and_hadoops_addresses_are_asked_of_their_drivers"),
    Case("logs", "how far a long log is read, on a terminal", "a bar with an end that goes away",
         "test_progress.py::test_the_bar_of_a_log_has_an_end_and_goes_away"),
    Case("logs", "list<dictionary<string>>, 500,000 rows of a file", "as list<string>",
         f"{LOGS}::test_long_lists_of_dictionaries_and_parts_of_a_file"),
    Case("logs", "a run that was killed", "goes on, and leaves no folder",
         f"{LOGS}::test_a_run_that_was_killed_goes_on"),
    Case("logs", "1 and 7 workers of Dask", "the same files, bit by bit",
         "test_profile_on_workers.py::test_one_and_seven_workers_write_the_same"),
    Case("logs", "--engine dask, 2 local processes", "the same files, bit by bit",
         "test_profile_on_workers.py::test_the_command_on_two_processes"),
    Case("logs", "--counts of table, value or row, and count", "the profile of the log",
         f"{LOGS}::test_counts_that_others_made_are_the_profile_of_the_log"),
    Case("logs", "12.0 for 12", "the row of 12", f"{LOGS}::test_a_whole_number_is_the_same_in_every_writing"),
    Case("logs", "id:weight with --weights :", "rows of the ids",
         f"{LOGS}::test_weights_of_ids_are_left_out_where_one_says_so"),
    Case("logs", "id:weight without; times that nobody names", "one line that says what to do",
         f"{LOGS}::test_values_that_are_no_categories_are_refused"),
    Case("logs", r"the delimiter \x1d; a folder of Spark, full and empty", "divided; read; a line that says what to do",
         f"{LOGS}::test_the_folder_of_an_engine_and_escapes"),
    Case("logs", "a .zip", "one line that says what to do", f"{LOGS}::test_a_fault_is_one_line_and_nothing_is_left"),
    Case("logs", "a list as .tsv; ' rows' in its header", "read", f"{LISTS}::test_a_list_is_read_as_it_was_written"),
    Case("strategy", "a leaderboard run of one's own, 7.4 times behind", "its rank, and the problems that it loses",
         "test_ranks.py::test_a_strategy_is_told_where_it_loses_by_how_much_and_what_binds_either_step"),
    Case("strategy", "explain OWN COMMITTED", "why one beats the other",
         "test_explain.py::test_an_own_record_is_held_against_a_committed_one"),
    Case("strategy", "the page of a leaderboard run of one's own", "written, and says its rank beside the committed",
         "test_new.py::test_from_an_empty_folder_to_a_ranked_row"),
    Case("strategy", "shardbench test without torch", "passes",
         "test_doctor.py::test_without_torch_a_strategy_is_tested"),
    Case("strategy", "pip install --no-build-isolation -e of a new package", "a row with a rank",
         "test_new.py::test_from_an_empty_folder_to_a_ranked_row"),
    Case("faults", "a FIFO and a link to /dev/zero for records", "refused",
         "test_store.py::test_what_never_ends_is_not_read"),
    Case("faults", "plan_s = 1e-9 in a submission", "a fault of the row",
         "conformance/test_submission.py::test_what_does_not_follow_from_the_plans_is_a_fault"),
    Case("faults", "a rank that gets no memory in its build", "oom",
         "test_faults.py::test_a_fault_ends_as_it_should_and_leaves_nothing"),
    Case("faults", "a TMPDIR of more than 75 bytes; SIGCHLD blocked by the caller", "runs, and leaves nothing",
         f"{LAUNCH}::test_blocked_signals_and_a_long_path_of_temporary_folders_are_the_callers_own"),
    Case("faults", "python -m shardbench, PYTHONDEVMODE=1 and 2>&-", "runs",
         f"{CLI}::test_processes_start_under_pythons_own_checks_and_without_stderr"),
    Case("faults", "records removed while others write", "none is lost",
         "test_store.py::test_nothing_else_is_lost_between_removing_and_appending"),
    Case("faults", "kill -9", "its folder goes at the next start",
         "test_temporary.py::test_what_a_killed_process_left_is_cleaned_and_nothing_that_is_in_use"),
    Case("faults", "exit 200 behind a wall", "called exit 200, no signal",
         f"{LAUNCH}::test_an_exit_behind_a_wall_is_told_from_a_signal"),
)  # fmt: skip


class Outcomes:
    """Of each test, the parts that went otherwise than expected."""

    def __init__(self) -> None:
        self.wrong: dict[str, list[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        wrong = self.wrong.setdefault(report.nodeid.removeprefix("tests/").split("[")[0], [])
        if not report.passed:
            said = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext.splitlines()[-1]
            wrong.append(f"{report.outcome}: {said}")


def rows(cases: Iterable[Case], wrong: dict[str, list[str]]) -> list[tuple[str, ...]]:
    """A row a case, as ``COLUMNS``."""
    return [
        (one.about, one.input, one.expected, "; ".join(wrong.get(one.test, ["not run"])) or AS_EXPECTED, one.test)
        for one in cases
    ]


def main(target: Path) -> int:
    """Run the tests and write the table."""
    outcomes = Outcomes()
    tests = [str(ROOT / "tests" / one.test) for one in CASES]
    pytest.main(["-q", "-p", "no:cacheprovider", f"--rootdir={ROOT}", *dict.fromkeys(tests)], plugins=[outcomes])
    made = rows(CASES, outcomes.wrong)
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *made])
    return int(any(row[3] != AS_EXPECTED for row in made))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
