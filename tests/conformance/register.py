"""Every impostor, the rule that it breaks, and what catches it; a test holds each line of it."""

from dataclasses import dataclass

import impostors as plans
import impostors_at_files as files
import impostors_at_kernel as kernel
import impostors_at_processes as processes
import impostors_by_chance as chance
import impostors_declaring as declaring
import impostors_in_answers as answers
import impostors_in_time as hurry
import impostors_keeping as keeping
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
    """Whether it is caught by the wall alone; where the kernel lets users make no namespaces, it does as it likes."""
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
    Impostor(hurry.Interrupts, ANSWERS, "raises-infeasible-only", "KeyboardInterrupt"),
    Impostor(hurry.IsKilled, ANSWERS, "raises-infeasible-only", "killed by signal 9"),
    Impostor(hurry.SaysThatItIsSkipped, ANSWERS, "raises-infeasible-only", "cannot run it"),
    Impostor(hurry.SpeaksForTheHarness, ANSWERS, "raises-infeasible-only", "no such device"),
    Impostor(hurry.DeclinesWhileItLearns, ANSWERS, "raises-infeasible-only", "no training"),
    Impostor(plans.HoldsALambda, CROSSES, "picklable", "pickle"),
    Impostor(plans.BecomesAnother, CROSSES, "picklable", "int"),
    Impostor(hurry.SleepsWhileItIsPickled, CROSSES, "picklable", "took more than 3 s"),
    Impostor(plans.RollsDice, SEEDED, "repeatable", "two different results"),
    Impostor(chance.DrawsFromTheModuleRandom, SEEDED, "repeatable", "two different"),
    Impostor(chance.DrawsFromNumpysGenerator, SEEDED, "repeatable", "two different"),
    Impostor(chance.DrawsFromTorchsGenerator, SEEDED, "repeatable", "two different"),
    Impostor(chance.AddsTheSeedToTheClock, SEEDED, "repeatable", "two different"),
    Impostor(chance.CountsItsCalls, SEEDED, "repeatable", "two different"),
    Impostor(chance.CountsForItsClass, SEEDED, "repeatable", "two different"),
    Impostor(chance.PlansByAddresses, SEEDED, "repeatable", "two different"),
    *_nothing(chance, SURROUNDED, PlansByTheProcess="processes have their namespace's numbers, the same in each"),
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
    Impostor(
        chance.PretendsToDraw, ORDERED, NOT_CAUGHT, reason="the order may matter to who draws, or says that it draws"
    ),
    Impostor(plans.Hangs, KEEPS_TIME, "finishes", "killed", plan_s=0.2),
    Impostor(hurry.StopsItself, KEEPS_TIME, "finishes", "killed", plan_s=0.2),
    Impostor(hurry.IgnoresSignals, KEEPS_TIME, "finishes", "killed", plan_s=0.2),
    Impostor(hurry.Overruns, KEEPS_TIME, "budget", "planning took", plan_s=0.2),
    Impostor(hurry.OverrunsWhileItLearns, KEEPS_TIME, "budget", "fitting took", plan_s=0.2),
    Impostor(hurry.SetsTheClock, KEEPS_TIME, "budget", "planning took", plan_s=0.2),
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
    *_nothing(
        reaching,
        OUTSIDE,
        ReadsItsParentsMemory="that is the first process of its namespace, which has read nothing",
        FollowsItsParentsFiles="that is the first process of its namespace, which sees what it sees",
        SignalsItsParent="that is the first process of its namespace, which takes no signal from inside",
    ),
    Impostor(reaching.EditsTheHarness, OUTSIDE, "out-of-reach", "closed to planners", walled=True),
    Impostor(reaching.AsksTheNetwork, OUTSIDE, "out-of-reach", "closed to planners", walled=True),
    Impostor(reaching.MountsAnotherFolder, OUTSIDE, "out-of-reach", "closed to planners", walled=True),
    Impostor(reaching.PatchesTheJudge, JUDGED, "valid", "needs .* bytes of HBM"),
    Impostor(reaching.AnswersForItself, JUDGED, "raises-infeasible-only", "cannot be read"),
    Impostor(reaching.AnswersWithAPickle, JUDGED, "raises-infeasible-only", "cannot be read"),
    Impostor(reaching.AnswersWithAPlan, JUDGED, "round-trip", "segments"),
    Impostor(reaching.AnswersWithoutEnd, JUDGED, "raises-infeasible-only", "cannot be read: a message of"),
    Impostor(reaching.AsksForTheTestSplit, FORESEES, "declared-information", "test trace", problems=()),
    Impostor(reaching.OpensTheSeal, FORESEES, "held-out", "made for those", plan_s=4.0, problems=()),
    Impostor(reaching.AsksBehindTheSeal, FORESEES, "held-out", "made for those", plan_s=4.0, problems=()),
    Impostor(reaching.DrawsItsOwn, FORESEES, "held-out", "made for those", plan_s=4.0, problems=()),
    Impostor(
        reaching.ForeseesALittle,
        FORESEES,
        NOT_CAUGHT,
        plan_s=4.0,
        problems=(),
        reason="it gains less than an honest plan may by luck",
    ),
    Impostor(
        chance.KnowsTheShapes,
        "settings are the same on all problems",
        NOT_CAUGHT,
        reason="a rule of a strategy may look like that: whoever merges it reads its code",
    ),
    Impostor(
        chance.KnowsThatItIsTested,
        "a strategy does the same under test as in trials",
        NOT_CAUGHT,
        reason="cells of the leaderboard that are made anew show it",
    ),
    Impostor(
        reaching.WritesRecordsAndSaysNothing,
        RECORDS,
        NOTHING_THERE,
        walled=True,
        problems=("one-row-tables",),
        reason="the records are not there",
    ),
    *_nothing(
        keeping,
        KEEPS,
        KeepsAFile="each process has a temporary folder of its own",
        KeepsAFileInSharedMemory="each process has a folder of shared memory of its own",
        KeepsAFileAtHome="its home is its temporary folder",
        KeepsTheEnvironment="what it sets ends with its process",
        KeepsItsLog="each process prints to a file of its own",
        KeepsSystemVMemory="the namespace's ends with it",
        KeepsASystemVQueue="the namespace's ends with it",
        KeepsASystemVSemaphore="the namespace's ends with it",
        KeepsAMessageQueue="the namespace's ends with it",
        KeepsASemaphore="it is a file of shared memory",
        KeepsAProcess="all processes end with the first of their namespace",
        KeepsProcesses="all processes end with the first of their namespace",
        KeepsAnAbstractSocket="names are those of a namespace of networks",
    ),
    *_reaching(
        keeping,
        KEEPS,
        "KeepsAFileAtTheUsersHome",
        "KeepsAFileInThePackage",
        "KeepsBytecode",
        "KeepsTheTimeOfAFile",
        "KeepsAKey",
        "KeepsAKeyByNumber",
    ),
    Impostor(
        keeping.TalksByLocks,
        KEEPS,
        NOT_CAUGHT,
        looks=True,
        reason="a lock ends with its process; processes of one time could talk",
    ),
    *_nothing(
        processes,
        OUTSIDE,
        SignalsOthers="there are no others",
        LimitsOthers="there are no others",
        PinsOthers="there are no others",
        RanksOthers="there are no others",
        TracesOthers="there are no others",
        ListsProcesses="there are no others",
        ReadsOfOthers="there are no others",
        RenicesItsUser="of its user's processes only its own are there",
        TracesItsParent="that is the first process of its namespace, which has no file and no right that it has not",
    ),
    *_reaching(processes, OUTSIDE, "SignalsEverybody", "LowersItsScore"),
    Impostor(processes.LiftsTheLimitOfFiles, LIMITED, "raises-infeasible-only", "not allowed to raise"),
    Impostor(processes.WritesAHugeFile, LIMITED, "raises-infeasible-only", "File too large"),
    Impostor(processes.PrintsWithoutEnd, LIMITED, "raises-infeasible-only", "File too large|exited with 1"),
    Impostor(processes.TakesMemoryInSeveralProcesses, LIMITED, "raises-infeasible-only", "none of them got it"),
    Impostor(
        processes.MapsSharedMemory,
        LIMITED,
        NOT_CAUGHT,
        looks=True,
        reason="the limit is of private memory; where memory runs out the kernel ends this process first",
    ),
    *_reaching(
        kernel,
        KERNEL,
        "WritesSettings",
        "PressesKeys",
        "UnmountsItsFolder",
        "RemountsForWriting",
        "ChangesItsRoot",
        "EntersNamespaces",
        "MakesADisk",
        "OpensByHandle",
        "OpensRawSockets",
        "SendsDatagrams",
        "CallsTheHypervisor",
        "UsesARingOfCalls",
        "EditsSitePackages",
        "EditsABaseline",
        "EditsPython",
    ),
    Impostor(kernel.AsksForNames, KERNEL, "raises-infeasible-only", "gaierror", walled=True),
    *_nothing(
        kernel,
        KERNEL,
        ListsInterfaces="its namespace has the loopback alone",
        ConnectsToSockets="no socket is listed in its namespace",
        MountsInNamespacesOfItsOwn="it can make no namespaces, and could take off nothing that was shown to it",
        OpensByHandleInNamespacesOfItsOwn="it can make no namespaces, and handles open what is shown alone",
        ReopensItsDescriptors="it has its pipes, its log and nothing",
    ),
    *_reaching(
        files,
        OUTSIDE,
        "ReadsOthersRecords",
        "ReadsShippedLookups",
        "ReadsOthersPlans",
        "ReadsTheHistory",
        "ReadsKeys",
        "ReadsSettings",
        "ReadsPasswords",
        "ReplacesItsLog",
    ),
    Impostor(answers.WorksWhileItIsWritten, KEEPS_TIME, "budget", "planning took", plan_s=0.2),
    Impostor(answers.PatchesTheWriter, KEEPS_TIME, "budget", "planning took", plan_s=0.2),
    Impostor(answers.PatchesThePlan, KEEPS_TIME, "budget", "planning took", plan_s=0.2),
    Impostor(answers.PatchesJson, KEEPS_TIME, "budget", "planning took", plan_s=0.2),
    Impostor(answers.PatchesTheMessages, KEEPS_TIME, "budget", "planning took", plan_s=0.2),
    Impostor(answers.PatchesTheFrames, KEEPS_TIME, "budget", "planning took", plan_s=0.2),
    Impostor(answers.WorksWhenItIsLookedAt, KEEPS_TIME, "budget", "planning took", plan_s=0.2),
    Impostor(answers.WorksWhileItIsMadeAgain, KEEPS_TIME, "budget", "pickle", plan_s=0.2),
    Impostor(answers.WorksWhileItsStateIsSet, KEEPS_TIME, "budget", "pickle", plan_s=0.2),
    Impostor(answers.WorksInAThread, SEEDED, "repeatable", "two different"),
    Impostor(answers.AnswersBeforeItLearned, KEEPS_TIME, "budget", plan_s=0.2),
    Impostor(answers.AnswersBeforeItPlanned, JUDGED, "round-trip"),
    Impostor(answers.AnswersForTheCheck, JUDGED, "leaves-input-alone", "changed"),
    Impostor(answers.SaysThatItBegan, JUDGED, "raises-infeasible-only", "of kind began"),
    Impostor(answers.SaysThatItWasQuick, KEEPS_TIME, "budget", "planning took", plan_s=0.2),
    Impostor(answers.SaysThatItFailedAsTheHarness, JUDGED, "raises-infeasible-only", "no device"),
    Impostor(answers.MarksWithoutEnd, KEEPS_TIME, "finishes", "killed", plan_s=0.2),
    Impostor(answers.NotesWhatItSpent, KEEPS_TIME, "budget", "planning took", plan_s=0.2),
    Impostor(declaring.ChangesItsMoves, DECLARES, "declared-moves", "replicate"),
    Impostor(declaring.ChangesWhatItSees, DECLARES, "declared-information", "access_profile"),
    Impostor(declaring.ChangesItsName, DECLARES, "declares", "state a name"),
    Impostor(declaring.ChangesItsRole, DECLARES, "declares"),
    Impostor(declaring.ChangesWhatItRequires, DECLARES, "declares", "no_such_module"),
    Impostor(declaring.RequiresAFolder, DECLARES, "declares", "results"),
    *_nothing(
        declaring,
        DECLARES,
        RequiresCode="modules are looked for without importing their packages",
        ClaimsToBeOurs="a package's strategies are its own, whatever their classes say",
    ),
    Impostor(declaring.TwoOfOneName, DECLARES, "declares", "already taken"),
    Impostor(declaring.PatchesWhatDescribesIt, JUDGED, "valid", "needs .* bytes of HBM"),
    Impostor(declaring.PatchesWhoeverImportsIt, JUDGED, "valid", "needs .* bytes of HBM"),
    Impostor(declaring.ForgesItsDescription, DECLARES, "declares", "state a name"),
    Impostor(declaring.AnswersWithAPickleWhileItIsDescribed, DECLARES, "declares", "cannot be read"),
    Impostor(declaring.ExitsWhileItIsMade, DECLARES, "declares", "SystemExit"),
    Impostor(declaring.InterruptsWhileItIsMade, DECLARES, "declares", "KeyboardInterrupt"),
    Impostor(declaring.RecursesWhileItIsMade, DECLARES, "declares", "recursion"),
    Impostor(declaring.DiesWhileItIsMade, DECLARES, "declares", "exited with 0"),
    Impostor(declaring.ExitsWhenItIsLookedAt, DECLARES, "declares", "SystemExit"),
    Impostor(declaring.InterruptsWhileItIsPickled, CROSSES, "picklable", "KeyboardInterrupt"),
    Impostor(declaring.RecursesWhileItIsPickled, CROSSES, "picklable", "recursion"),
    Impostor(declaring.ExitsWhileItIsMadeAgain, CROSSES, "picklable", "SystemExit"),
    Impostor(declaring.RecursesWhileItPlans, ANSWERS, "raises-infeasible-only", "recursion"),
    Impostor(declaring.RaisesTheBaseWhileItPlans, ANSWERS, "raises-infeasible-only", "of no kind"),
    Impostor(declaring.InterruptsWhileItLearns, ANSWERS, "raises-infeasible-only", "KeyboardInterrupt"),
)
"""Those that the wall alone catches do as they like where the kernel lets users make no namespaces."""
