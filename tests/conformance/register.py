"""Every impostor, the rule that it breaks, and what catches it; a test holds each line of it."""

from dataclasses import dataclass

import impostors as plans
import impostors_by_chance as chance
import impostors_declaring as declaring
import impostors_reaching as reaching

from shardbench.model.strategy import Strategy

NOT_CAUGHT = "not caught"
NOTHING_THERE = "nothing there"
"""It passes, for it got nothing: what it gets it puts into its plan, or fails of."""
PROBLEMS = ("few-tables", "forces-host-memory", "fits-nowhere")
"""The one that is asked in other words, and those that do not fit one device, or any."""


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
    """Whether it is caught by the wall alone; without bubblewrap it does as it likes."""
    plan_s: float = 0.5
    problems: tuple[str, ...] = PROBLEMS
    looks: bool = False
    """Whether it plans well and looks for something: it is asked in two processes alone."""
    reason: str = ""
    """Why it is not caught, or there is nothing."""


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
KEEPS = "no process leaves anything for the next"
KERNEL = "the kernel is asked for nothing beyond a process's own"
LIMITED = "no more memory, files or processes are taken than is allowed"
FORESEES = "plans are not made for the test lookups"


def _reaching(of: object, rule: str, *names: str) -> tuple[Impostor, ...]:
    """Those that the kernel refuses what they ask for."""
    kinds = [getattr(of, name) for name in names]
    return tuple(Impostor(one, rule, "out-of-reach", "closed to planners", walled=True) for one in kinds)


def _nothing(of: object, rule: str, **names: str) -> tuple[Impostor, ...]:
    """Those that find nothing, with the reason."""
    kinds = [(getattr(of, name), reason) for name, reason in names.items()]
    return tuple(Impostor(one, rule, NOTHING_THERE, walled=True, looks=True, reason=reason) for one, reason in kinds)


IMPOSTORS = (
    Impostor(plans.MissingRows, COVERS, "valid", "weights are not placed"),
    Impostor(plans.OverfullDevice, FITS, "valid", "needs .* bytes of HBM"),
    Impostor(plans.PlansWhatDoesNotFit, FITS, "declines-what-does-not-fit", "needs .* bytes of HBM"),
    Impostor(plans.DeclinesEverything, "what fits is planned", "plans-what-fits", "too hard"),
    Impostor(plans.PeeksAtProfile, SEES, "declared-information", "access_profile"),
    Impostor(plans.PeeksAtTestTrace, SEES, "declared-information", "test trace"),
    Impostor(plans.OverwritesArrays, INPUT, "leaves-input-alone", "changed"),
    Impostor(plans.UndeclaredMove, "only declared moves are used", "declared-moves", "replicate"),
    Impostor(plans.NoMoves, DECLARES, "declares", "no moves"),
    Impostor(plans.OtherWorld, ANSWERS, "world-size", "5 devices"),
    Impostor(plans.NotAPlan, ANSWERS, "returns-a-plan", "list"),
    Impostor(plans.ForgesAPlan, ANSWERS, "round-trip", "world_size"),
    Impostor(plans.DiesSilently, ANSWERS, "raises-infeasible-only", "exited with 3"),
    Impostor(plans.Raises, ANSWERS, "raises-infeasible-only", "KeyError"),
    Impostor(plans.IsKilled, ANSWERS, "raises-infeasible-only", "killed by signal 9"),
    Impostor(plans.SpeaksForTheHarness, ANSWERS, "raises-infeasible-only", "no such device"),
    Impostor(plans.HoldsALambda, CROSSES, "picklable", "pickle"),
    Impostor(plans.RollsDice, SEEDED, "repeatable", "two different results"),
    Impostor(chance.CountsForItsClass, SEEDED, "repeatable", "two different"),
    Impostor(chance.PlansByTheHome, SURROUNDED, "deterministic", "two different"),
    Impostor(chance.FailsForOtherSeeds, ANY_SEED, "any-seed", "IndexError"),
    Impostor(chance.SortsByName, NAMED, "names", "other names"),
    Impostor(chance.DealsByPosition, ORDERED, "order", "another order"),
    Impostor(
        chance.PretendsToDraw, ORDERED, NOT_CAUGHT, reason="the order may matter to who draws, or says that it draws"
    ),
    Impostor(plans.Hangs, KEEPS_TIME, "finishes", "killed", plan_s=0.2),
    Impostor(plans.Overruns, KEEPS_TIME, "budget", "planning took", plan_s=0.2),
    Impostor(plans.OverrunsWhileItLearns, KEEPS_TIME, "budget", "fitting took", plan_s=0.2),
    Impostor(reaching.ReadsTestBatches, BATCHES, "out-of-reach", "closed to planners", walled=True),
    Impostor(reaching.WritesRecords, RECORDS, "out-of-reach", "closed to planners|changed"),
    *_nothing(
        reaching, OUTSIDE, ReadsItsParentsMemory="that is the first process of its namespace, which has read nothing"
    ),
    Impostor(reaching.EditsTheHarness, OUTSIDE, "out-of-reach", "closed to planners", walled=True),
    Impostor(reaching.AsksTheNetwork, OUTSIDE, "out-of-reach", "closed to planners", walled=True),
    Impostor(reaching.PatchesTheJudge, JUDGED, "valid", "needs .* bytes of HBM"),
    Impostor(reaching.AnswersWithAPickle, JUDGED, "raises-infeasible-only", "cannot be read"),
    Impostor(reaching.AsksBehindTheSeal, FORESEES, "held-out", "made for those", plan_s=4.0, problems=()),
    Impostor(
        reaching.ForeseesALittle,
        FORESEES,
        NOT_CAUGHT,
        plan_s=4.0,
        problems=(),
        reason="it gains less than an honest plan may by luck",
    ),
    Impostor(
        chance.KnowsThatItIsTested,
        "a strategy does the same under test as in trials",
        NOT_CAUGHT,
        reason="cells of the leaderboard that are made anew show it",
    ),
    *_nothing(
        reaching,
        KEEPS,
        KeepsAFile="each process has a temporary folder of its own",
        KeepsAProcess="all processes end with the first of their namespace",
    ),
    *_reaching(reaching, KEEPS, "KeepsAFileAtTheUsersHome"),
    *_nothing(reaching, OUTSIDE, SignalsOthers="there are no others"),
    Impostor(reaching.WritesAHugeFile, LIMITED, "raises-infeasible-only", "File too large"),
    *_nothing(
        reaching,
        KERNEL,
        MountsInNamespacesOfItsOwn="it can make no namespaces, and could take off nothing that was shown to it",
    ),
    *_reaching(reaching, OUTSIDE, "ReadsShippedLookups"),
    Impostor(declaring.PatchesTheWriter, KEEPS_TIME, "budget", "planning took", plan_s=0.2),
    Impostor(declaring.AnswersBeforeItPlanned, JUDGED, "round-trip"),
    Impostor(declaring.ChangesWhatItSees, DECLARES, "declared-information", "access_profile"),
    *_nothing(declaring, DECLARES, ClaimsToBeOurs="a package's strategies are its own, whatever their classes say"),
    Impostor(declaring.PatchesWhoeverImportsIt, JUDGED, "valid", "needs .* bytes of HBM"),
    Impostor(declaring.ForgesItsDescription, DECLARES, "declares", "state a name"),
    Impostor(declaring.DiesWhileItIsMade, DECLARES, "declares", "exited with 0"),
    Impostor(declaring.InterruptsWhileItIsPickled, CROSSES, "picklable", "KeyboardInterrupt"),
)
"""Those that the wall alone catches do as they like without bubblewrap."""
