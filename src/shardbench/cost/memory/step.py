"""A step as TorchRec goes through it: what is held from here to there, and what one call holds beside that."""

from collections.abc import Callable
from functools import partial

import numpy as np

from shardbench.base.arrays import Floats, zeros
from shardbench.base.errors import Unsupported
from shardbench.cost.load import VECTOR_BYTES
from shardbench.cost.lookups import TableLookups
from shardbench.cost.memory.held import Activations, Module, activations, input_bytes, modules, table_bytes
from shardbench.cost.memory.peak import CPU, CUDA, TERMS, MemoryConstants, PeakMemory, Term
from shardbench.cost.phases import StepPhase
from shardbench.cost.traffic import expected_lookups
from shardbench.model.plan import DenseHome, Plan
from shardbench.model.problem import Problem
from shardbench.model.table import DenseShape, Optimizer, Precision, StepSchedule

_FIXED = [TERMS.index(term) for term in (Term.TABLES, Term.DENSE)]
"""Terms that are allocated once, before the first step: the allocator loses nothing by them."""
HALF = 0.5
"""Bytes of a number in two bytes over those of an fp32 one."""
SORT_RATIO = 6.0
"""Workspace of adding gradients up by lookup (torch's index_add), and of making ids distinct, over the indices' bytes.
"""
PIPELINED_BATCHES = 3
"""Batches that TorchRec's pipeline has on the device: one that it trains on, one in exchange, one on its way."""


def peak_memory(
    plan: Plan,
    problem: Problem,
    dense: DenseShape,
    lookups: Callable[[int], TableLookups] | None = None,
    *,
    batches: int | None = None,
    activation_bytes: float | None = None,
    constants: MemoryConstants | None = None,
) -> PeakMemory:
    """Return what every rank holds in a step of a plan, by moment and term.

    ``lookups(i)`` are those of table i in one batch; None: those that the training profiles expect. ``batches`` are on
    the device at once: where it is None 1, or as many as a pipeline has. ``activation_bytes`` are the most that a
    dense model other than ``dense`` holds for a rank's samples. Raises Unsupported for plans with a batch schedule or
    with a dense model on hosts.
    """
    if plan.schedule is not None or plan.dense is DenseHome.HOSTS:
        raise Unsupported("peaks are predicted of steps of one kind on devices: of no batch schedule, nor on hosts")
    constants = constants or (CPU if problem.machine.device == "cpu" else CUDA)
    known = [(lookups or partial(expected_lookups, problem))(i) for i in range(len(problem.tables))]
    pipelined = problem.schedule is StepSchedule.PIPELINED
    step = _Step(modules(plan, problem, known, constants), problem, constants)
    step.hold(Term.TABLES, table_bytes(plan, problem))
    step.hold(Term.DENSE, 2.0 * VECTOR_BYTES * dense.parameters(problem.tables))
    on_device = batches if batches is not None else PIPELINED_BATCHES if pipelined else 1
    step.hold(Term.BATCHES, on_device * input_bytes(plan, problem, dense, known))
    step.hold(Term.REPLICAS, step.total(lambda module: module.replicas))
    step.input_pipelined() if pipelined else step.input()
    step.lookup()
    step.output()
    if pipelined:
        step.hold(Term.LOOKUPS, step.total(lambda module: module.exchanged * module.received))
    model = activations(plan, problem, dense, known, activation_bytes)
    step.hold(Term.VECTORS, model.assembled)
    step.at(StepPhase.DENSE, {Term.ACTIVATIONS: model.forward})
    # Of vectors only those live on that the backward pass needs: histories.
    step.drop(Term.VECTORS, step.total(lambda module: module.placed) + model.assembled - model.unpooled)
    step.at(StepPhase.DENSE, {Term.ACTIVATIONS: model.backward})
    step.drop(Term.VECTORS, model.unpooled)
    step.output_backward(model)
    step.lookup_backward()
    step.update(problem.optimizer)
    return step.peaks(constants, len(plan.segments))


class _Step:
    """The parts of a step, module by module, and what ranks hold from moment to moment."""

    def __init__(self, own_modules: list[Module], problem: Problem, constants: MemoryConstants) -> None:
        self._held = np.zeros((len(TERMS), problem.world_size))
        self._moments: list[tuple[StepPhase, Floats]] = []
        self._modules = own_modules
        self._exchanged = [module for module in own_modules if module.exchanged]
        self._pipelined = problem.schedule is StepSchedule.PIPELINED
        self._half = problem.exchange is not Precision.FP32
        self._gloo = float(constants.gloo)
        for module in own_modules:
            self.hold(Term.LOOKUPS, module.indices)

    def hold(self, term: Term, size: Floats | float) -> None:
        """Hold so many bytes more from now on."""
        self._held[TERMS.index(term)] += size

    def drop(self, term: Term, size: Floats | float) -> None:
        """Hold so many bytes less from now on."""
        self._held[TERMS.index(term)] -= size

    def at(self, phase: StepPhase, beside: dict[Term, Floats] | None = None) -> None:
        """Write down a moment in which ``beside``, bytes [world] of each term, is there beside what is held."""
        held = self._held.copy()
        for term, size in (beside or {}).items():
            held[TERMS.index(term)] += size
        self._moments.append((phase, held))

    def peaks(self, constants: MemoryConstants, segments: int) -> PeakMemory:
        """Return all moments of a plan of so many segments, with what its exchanges do not decide."""
        held = np.stack([held for _, held in self._moments])
        asked = held.sum(axis=1) - held[:, _FIXED].sum(axis=1)
        held[:, TERMS.index(Term.SLACK)] = constants.slack_ratio * asked
        held[:, TERMS.index(Term.CONTEXT)] = constants.context_bytes + constants.segment_bytes * segments
        return PeakMemory(moments=tuple(phase for phase, _ in self._moments), bytes=held, judged=constants.judged)

    def total(self, size: Callable[[Module], Floats]) -> Floats:
        """Return the sum of a number of all modules, [world]."""
        return sum(map(size, self._modules), zeros(self._held.shape[1]))

    def input(self) -> None:
        """Send lookups in the order of their owners; put those that arrive in the order of tables."""
        for module in self._modules:
            self._make_distinct(module)
            if module.exchanged:
                self.at(StepPhase.INPUT, {Term.LOOKUPS: module.sent + module.dealt})
                self.at(StepPhase.INPUT, {Term.LOOKUPS: module.sent + 2.0 * module.received})
                self._keep(module)

    def input_pipelined(self) -> None:
        """Do the same, where this batch's lookups came in the step before and the next one's come in this one."""
        for module in self._modules:
            self.hold(Term.LOOKUPS, module.kept)
        for module in self._exchanged:
            self.hold(Term.LOOKUPS, 2.0 * module.sent + module.received)
        for module in self._modules:
            self._make_distinct(module)
        for module in self._exchanged:
            self.at(StepPhase.INPUT, {Term.LOOKUPS: module.dealt})
        for module in self._exchanged:
            self.at(StepPhase.INPUT, {Term.LOOKUPS: module.received})
            self.drop(Term.LOOKUPS, module.sent + module.received)
            self._keep(module)

    def _make_distinct(self, module: Module) -> None:
        self.at(StepPhase.INPUT, {Term.WORKSPACE: SORT_RATIO * module.repeated})
        self.hold(Term.LOOKUPS, module.kept)

    def _keep(self, module: Module) -> None:
        # Unpooled vectors are put back by where their lookups were sent to.
        self.hold(Term.LOOKUPS, module.received + (0.0 if module.pooled else module.dealt))

    def lookup(self) -> None:
        """Look up, with 8-byte offsets in the place of 4-byte lengths."""
        for module in self._modules:
            self.at(StepPhase.LOOKUP, {Term.REPLICAS: module.replicas * module.pooled})
            # Those of the lookup before; what is kept of this one is held already.
            self.drop(Term.LOOKUPS, module.indices)
            self.hold(Term.LOOKUPS, module.offsets if module.exchanged else module.indices)
            self.hold(Term.VECTORS, module.vectors)
            self.at(StepPhase.LOOKUP)

    def output(self) -> None:
        """Send vectors to the ranks of their samples."""
        for module in self._modules:
            if module.exchanged:
                self._send(module)
            self._copy(module)

    def _send(self, module: Module) -> None:
        given, arrived = module.to_all + module.to_sum, module.arrived
        # Segments of one table that meet on a rank are added up first, into vectors of their own.
        merged = given * (module.pooled and bool((module.vectors > given).any()))
        # TorchRec joins what each rank sent; unpooled vectors are put in order, before and after.
        joined = module.from_all if module.pooled else module.put_back
        sent = merged if module.pooled else module.to_all
        # A pipeline's vectors go when a copy of them is under way.
        let_go = self._pipelined * np.minimum(module.to_all, module.vectors)
        if self._half:
            buffers = given + arrived + module.to_all * module.pooled + self._gloo * module.to_sum
            self.at(StepPhase.OUTPUT, {Term.VECTORS: sent, Term.CODEC: (1.0 + HALF) * given})
            self.drop(Term.VECTORS, let_go)
            self.at(StepPhase.OUTPUT, {Term.VECTORS: merged, Term.CODEC: HALF * buffers})
            self.at(StepPhase.OUTPUT, {Term.VECTORS: merged + arrived, Term.CODEC: HALF * arrived})
        else:
            # Pooled vectors are copied into a tensor that is registered for sending.
            beside = merged + module.to_all + self._gloo * module.to_sum
            self.at(StepPhase.OUTPUT, {Term.VECTORS: beside})
            self.drop(Term.VECTORS, let_go)
            self.at(StepPhase.OUTPUT, {Term.VECTORS: beside + arrived})
        self.at(StepPhase.OUTPUT, {Term.VECTORS: merged + self._late(module) + arrived + joined})
        self.drop(Term.VECTORS, module.vectors - let_go)
        self.hold(Term.VECTORS, arrived)

    def _late(self, module: Module) -> Floats:
        return self._gloo * module.to_all * (HALF if self._half else 1.0)

    def _copy(self, module: Module) -> None:
        # A vector of distinct ids goes to the places of all lookups that ask for it.
        if module.repeated.any():
            self.at(StepPhase.OUTPUT, {Term.VECTORS: self._late(module) + module.placed})
            self.drop(Term.VECTORS, module.arrived)
            self.hold(Term.VECTORS, module.placed)

    def output_backward(self, model: Activations) -> None:
        """Exchange the vectors' gradients, the last module's first."""
        self.hold(Term.GRADIENTS, model.pooled + model.unpooled)
        self.at(StepPhase.OUTPUT_BACKWARD)
        waiting = sum(module.pooled for module in self._modules)
        for module in reversed(self._modules):
            if module.pooled or module.exchanged:
                self.at(StepPhase.OUTPUT_BACKWARD, {Term.GRADIENTS: module.placed})
            waiting -= module.pooled
            if not module.pooled:
                self.drop(Term.GRADIENTS, module.placed)
            elif not waiting:
                self.drop(Term.GRADIENTS, model.pooled)
            if module.repeated.any():
                summed = {Term.GRADIENTS: module.placed + module.arrived, Term.WORKSPACE: SORT_RATIO * module.repeated}
                self.at(StepPhase.OUTPUT_BACKWARD, summed)
            if module.exchanged:
                self._return(module)
            self.hold(Term.GRADIENTS, module.vectors)

    def _return(self, module: Module) -> None:
        given, arrived, phase = module.to_all + module.to_sum, module.arrived, StepPhase.OUTPUT_BACKWARD
        gathered = module.to_all + (1.0 + self._gloo) * module.to_sum
        if module.pooled:
            # Cut up by the rank they go to, where that is more than one, and joined anew.
            cut = float(np.count_nonzero(module.to_all) > 1)
            self.at(phase, {Term.GRADIENTS: (1.0 + cut) * module.from_all + arrived})
            ordered = module.from_all + arrived
        else:
            self.at(
                phase, {Term.GRADIENTS: arrived + module.put_back, Term.WORKSPACE: SORT_RATIO * module.dealt}
            )  # fmt: skip
            ordered = arrived
        if self._half:
            self.at(phase, {Term.GRADIENTS: ordered, Term.CODEC: (1.0 + HALF) * arrived})
            self.at(phase, {Term.GRADIENTS: arrived, Term.CODEC: HALF * (arrived + gathered)})
            self.at(phase, {Term.GRADIENTS: given, Term.CODEC: HALF * given})
        else:
            self.at(phase, {Term.GRADIENTS: ordered + gathered})
        if not module.pooled:
            self.at(phase, {Term.GRADIENTS: 2.0 * given})

    def lookup_backward(self) -> None:
        """Sort lookups, add their gradients up by row and update the rows."""
        for module in reversed(self._modules):
            beside = {Term.WORKSPACE: module.workspace, Term.REPLICAS: module.replica_gradients}
            self.at(StepPhase.LOOKUP_BACKWARD, beside)
            self.drop(Term.GRADIENTS, module.vectors)

    def update(self, optimizer: Optimizer) -> None:
        """Step replicated rows, and average copies in one tensor."""
        squares = optimizer is not Optimizer.SGD
        own = self.total(lambda module: squares * module.replica_gradients)
        self.at(StepPhase.UPDATE, {Term.REPLICAS: np.maximum(own, self.total(lambda module: module.copied))})
