"""Every impostor, the rule that it breaks, and what catches it; a test holds each line of it."""

from dataclasses import dataclass

import impostors as plans
import impostors_by_chance as chance
import impostors_in_time as hurry
import impostors_reaching as reaching

from shardbench.base.wall import Kind, kind
from shardbench.model.strategy import Strategy

NOT_CAUGHT = "not caught"
NOTHING_THERE = "nothing there"
"""It passes, for it got nothing."""


@dataclass(frozen=True)
class Impostor:
    """A strategy that breaks a rule."""

    kind: type[Strategy]
    rule: str
    check: str
    """The check that says so."""
    words: str = ""
    """Of its message, a regular expression."""
    walled: bool = False
    """Whether it is caught by the wall alone."""
    plan_s: float = 0.5

    @property
    def caught_by(self) -> str:
        """What is expected on this kernel."""
        return NOT_CAUGHT if self.walled and kind() is Kind.UNCONFINED else self.check


COVERS = "every row and column is placed once"
FITS = "no device holds more than its memory"
SEES = "what is not declared is not looked at"
INPUT = "the problem stays as it was"
DECLARES = "what a strategy states of itself is well formed"
ANSWERS = "a plan, or Infeasible, comes back"
CROSSES = "a strategy can be sent to the process that plans"
SEEDED = "the same seed gives the same plan"
SURROUNDED = "a plan hangs on the problem and the seed alone"
NAMED = "names of tables and problems say nothing"
ORDERED = "the order of tables says nothing"
ANY_SEED = "every seed gives a valid plan"
KEEPS_TIME = "learning and planning end within the budget"
BATCHES = "test batches are not read"
RECORDS = "records are the harness's"
OUTSIDE = "nothing outside is read, changed or signalled"
JUDGED = "plans are judged by the harness"
FORESEES = "plans are not made for the test lookups"

IMPOSTORS = (
    Impostor(plans.MissingRows, COVERS, "valid", "weights are not placed"),
    Impostor(plans.OverlappingRows, COVERS, "valid", "overlap"),
    Impostor(plans.LeavesATableOut, COVERS, "valid", "not placed"),
    Impostor(plans.PlacesATableTwice, COVERS, "valid", "overlap"),
    Impostor(plans.PlacesWhatIsNotThere, COVERS, "valid", "t-none"),
    Impostor(plans.OverfullDevice, FITS, "valid", "needs .* bytes of HBM"),
    Impostor(plans.PlansWhatDoesNotFit, FITS, "declines-what-does-not-fit", "needs .* bytes of HBM"),
    Impostor(plans.DeclinesEverything, "what fits is planned", "plans-what-fits", "too hard"),
    Impostor(plans.PeeksAtProfile, SEES, "declared-information", "access_profile"),
    Impostor(plans.PeeksAtMachine, SEES, "declared-information", "machine"),
    Impostor(plans.PeeksAtTestTrace, SEES, "declared-information", "test trace"),
    Impostor(plans.ReplacesTable, INPUT, "leaves-input-alone", "changed"),
    Impostor(plans.ReplacesField, INPUT, "leaves-input-alone", "changed"),
    Impostor(plans.OverwritesArrays, INPUT, "leaves-input-alone", "changed"),
    Impostor(plans.UndeclaredMove, "only declared moves are used", "declared-moves", "replicate"),
    Impostor(plans.NoMoves, DECLARES, "declares", "no moves"),
    Impostor(plans.NeedsTheMoon, DECLARES, "declares", "no_such_module_anywhere"),
    Impostor(plans.OtherWorld, ANSWERS, "world-size", "5 devices"),
    Impostor(plans.NotAPlan, ANSWERS, "returns-a-plan", "list"),
    Impostor(plans.NoRoundTrip, ANSWERS, "round-trip", "float"),
    Impostor(plans.ForgesAPlan, ANSWERS, "round-trip", "world_size"),
    Impostor(plans.SubclassesPlan, ANSWERS, "round-trip", "differs"),
    Impostor(plans.DiesSilently, ANSWERS, "raises-infeasible-only", "exited with 3"),
    Impostor(plans.Raises, ANSWERS, "raises-infeasible-only", "KeyError"),
    Impostor(hurry.ExitsAsIfAllWereWell, ANSWERS, "raises-infeasible-only", "SystemExit"),
    Impostor(hurry.Interrupts, ANSWERS, "raises-infeasible-only", "exited with 1"),
    Impostor(hurry.IsKilled, ANSWERS, "raises-infeasible-only", "killed by signal 9"),
    Impostor(hurry.SaysThatItIsSkipped, ANSWERS, "raises-infeasible-only", "cannot run it"),
    Impostor(hurry.SpeaksForTheHarness, ANSWERS, "raises-infeasible-only", "no such device"),
    Impostor(hurry.DeclinesWhileItLearns, ANSWERS, "raises-infeasible-only", "no training"),
    Impostor(plans.HoldsALambda, CROSSES, "picklable", "pickle"),
    Impostor(plans.BecomesAnother, CROSSES, "picklable", "int"),
    Impostor(hurry.SleepsWhileItIsPickled, CROSSES, "picklable", "took more than 5 s"),
    Impostor(plans.RollsDice, SEEDED, "repeatable", "two different results"),
    Impostor(chance.DrawsFromTheModuleRandom, SEEDED, "repeatable", "two different"),
    Impostor(chance.DrawsFromNumpysGenerator, SEEDED, "repeatable", "two different"),
    Impostor(chance.DrawsFromTorchsGenerator, SEEDED, "repeatable", "two different"),
    Impostor(chance.AddsTheSeedToTheClock, SEEDED, "repeatable", "two different"),
    Impostor(chance.CountsItsCalls, SEEDED, "repeatable", "two different"),
    Impostor(chance.CountsForItsClass, SEEDED, "repeatable", "two different"),
    Impostor(chance.PlansByAddresses, SEEDED, "repeatable", "two different"),
    Impostor(chance.PlansByTheProcess, SURROUNDED, NOTHING_THERE, walled=True),
    Impostor(chance.PlansByTheMonth, SURROUNDED, "deterministic", "two different"),
    Impostor(chance.PlansByTheHome, SURROUNDED, "deterministic", "two different"),
    Impostor(chance.PlansByTheFolder, SURROUNDED, "deterministic", "two different"),
    Impostor(chance.FailsForOtherSeeds, ANY_SEED, "any-seed", "IndexError"),
    Impostor(chance.OverfillsForOtherSeeds, ANY_SEED, "any-seed", "not placed"),
    Impostor(chance.KnowsTheProblem, NAMED, "names", "other names"),
    Impostor(chance.KnowsTheTables, NAMED, "names", "other names"),
    Impostor(chance.HashesNames, NAMED, "names", "other names"),
    Impostor(chance.SortsByName, NAMED, "names", "other names"),
    Impostor(chance.DealsByPosition, ORDERED, "order", "another order"),
    Impostor(chance.PlansWellInOneOrder, ORDERED, "order", "another order"),
    Impostor(chance.PretendsToDraw, ORDERED, NOT_CAUGHT),
    Impostor(plans.Hangs, KEEPS_TIME, "finishes", "killed"),
    Impostor(hurry.StopsItself, KEEPS_TIME, "finishes", "killed"),
    Impostor(hurry.IgnoresSignals, KEEPS_TIME, "finishes", "killed"),
    Impostor(hurry.Overruns, KEEPS_TIME, "budget", "planning took"),
    Impostor(hurry.OverrunsWhileItLearns, KEEPS_TIME, "budget", "fitting took"),
    Impostor(hurry.SetsTheClock, KEEPS_TIME, "budget", "planning took"),
    Impostor(reaching.ReadsTestBatches, BATCHES, "out-of-reach", "closed to planners", walled=True),
    Impostor(reaching.ListsTheFolderOfBatches, BATCHES, "out-of-reach", "closed to planners", walled=True),
    Impostor(reaching.ListsWhereTemporaryFoldersAre, BATCHES, "out-of-reach", "closed to planners", walled=True),
    Impostor(reaching.LinksTestBatches, BATCHES, "out-of-reach", "closed to planners", walled=True),
    Impostor(reaching.ReadsThroughAChild, BATCHES, "out-of-reach", "closed to planners", walled=True),
    Impostor(reaching.ReadsWhileItIsPickled, BATCHES, "picklable", "No such file", walled=True),
    Impostor(reaching.ReadsWhileItIsUnpickled, BATCHES, "out-of-reach", "closed to planners", walled=True),
    Impostor(reaching.ChangesTestBatches, BATCHES, "out-of-reach", "closed to planners|changed"),
    Impostor(reaching.RemovesTestBatches, BATCHES, "out-of-reach", "closed to planners|changed"),
    Impostor(reaching.ReadsRecords, RECORDS, "out-of-reach", "closed to planners", walled=True),
    Impostor(reaching.WritesRecords, RECORDS, "out-of-reach", "closed to planners|changed"),
    Impostor(reaching.ReadsItsParentsMemory, OUTSIDE, NOTHING_THERE, walled=True),
    Impostor(reaching.FollowsItsParentsFiles, OUTSIDE, NOTHING_THERE, walled=True),
    Impostor(reaching.SignalsItsParent, OUTSIDE, NOTHING_THERE, walled=True),
    Impostor(reaching.EditsTheHarness, OUTSIDE, "out-of-reach", "closed to planners", walled=True),
    Impostor(reaching.KeepsNotesAtHome, OUTSIDE, "out-of-reach", "closed to planners", walled=True),
    Impostor(reaching.AsksTheNetwork, OUTSIDE, "out-of-reach", "closed to planners", walled=True),
    Impostor(reaching.MountsAnotherFolder, OUTSIDE, "out-of-reach", "closed to planners", walled=True),
    Impostor(reaching.PatchesTheJudge, JUDGED, "valid", "needs .* bytes of HBM"),
    Impostor(reaching.AnswersForItself, JUDGED, "raises-infeasible-only", "cannot be read"),
    Impostor(reaching.AnswersWithAPickle, JUDGED, "raises-infeasible-only", "cannot be read"),
    Impostor(reaching.AnswersWithAPlan, JUDGED, "round-trip", "segments"),
    Impostor(reaching.AnswersWithoutEnd, JUDGED, "raises-infeasible-only", "cannot be read: a message of"),
    Impostor(reaching.AsksForTheTestSplit, FORESEES, "declared-information", "test trace"),
    Impostor(reaching.OpensTheSeal, FORESEES, "held-out", "made for those", plan_s=4.0),
    Impostor(reaching.AsksBehindTheSeal, FORESEES, "held-out", "made for those", plan_s=4.0),
    Impostor(reaching.DrawsItsOwn, FORESEES, "held-out", "made for those", plan_s=4.0),
    Impostor(reaching.ForeseesALittle, FORESEES, NOT_CAUGHT, plan_s=4.0),
    Impostor(chance.KnowsTheShapes, "settings are the same on all problems", NOT_CAUGHT),
    Impostor(chance.KnowsThatItIsTested, "a strategy does the same under test as in trials", NOT_CAUGHT),
    Impostor(reaching.WritesRecordsAndSaysNothing, RECORDS, NOTHING_THERE, walled=True),
)
"""Those that the wall alone catches pass where the kernel lets users make no namespaces."""
