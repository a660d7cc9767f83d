"""A training step in TorchRec's own pipeline: the next batch's lookups are exchanged while this one computes."""

from collections.abc import Iterable, Iterator
from itertools import cycle, islice, repeat
from typing import Any

import torch
from torchrec.distributed.dist_data import KJTAllToAllTensorsAwaitable
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist

from shardbench.base.errors import Unsupported
from shardbench.cost.phases import StepPhase
from shardbench.engine.clock import Clock
from shardbench.engine.lower import Lowered, ModuleKey
from shardbench.engine.modules import ReplicatedRows, ShardedModule, TableModule
from shardbench.engine.sent_bytes import StepPart
from shardbench.engine.step import LocalBatch, Stamps, StepSettings, TrainingStep, time_kernels


class PipelinedStep(TrainingStep):
    """A step of TorchRec's TrainPipelineSparseDist: this batch is trained on, and the next one's lookups are sent.

    A step ends when these have arrived. TorchRec would wait for them first thing in the next step, so the end is at
    most a few launches early; and nothing of this pipeline goes on while another one's step is timed. The phase
    ``input`` is what the step itself waits and works for lookups, this batch's and the next one's: what of the exchange
    goes on behind other phases is in none.
    """

    def __init__(self, lowered: Lowered, settings: StepSettings, device: torch.device, clock: Clock) -> None:
        super().__init__(lowered, settings, device, clock)
        self._sharded = [module for module in self.modules if isinstance(module, ShardedModule)]
        for module in self._sharded:
            self._watch(module)
        self._tables = _Tables(self.modules)
        self._pipeline = _Pipeline(self, self._tables)
        self._upcoming: Iterator[LocalBatch] = iter(())
        self._stamps: Stamps | None = None
        self.turn: list[LocalBatch] = []
        """The batches that steps go through, over and over again."""

    def __call__(self, batch: LocalBatch) -> tuple[torch.Tensor, Stamps]:
        """Train on a batch of the turn, from which the pipeline is filled where another is next; give as others do."""
        if not self.holds(batch):
            # Before the step, never in one.
            self.fill(islice(cycle(self.turn), [one is batch for one in self.turn].index(True), None))
        stamps = self._stamps = Stamps(marks=[self.clock.now()], laps=[])
        logits = self._pipeline.progress(self._upcoming)
        self._pipeline.wait_for_lookups()
        self.lap(StepPhase.INPUT)
        self._stamps = None
        return logits.detach(), stamps

    def holds(self, batch: LocalBatch) -> bool:
        """Tell whether the batch is the next one, whose lookups have arrived already."""
        return bool(self._pipeline.batches) and self._pipeline.batches[0] is batch

    def fill(self, batches: Iterable[LocalBatch]) -> None:
        """Drop what the pipeline holds and exchange the lookups of the first batch; the others follow step by step."""
        self._pipeline.reset()
        self._upcoming = iter(batches)
        self._pipeline.fill_pipeline(self._upcoming)
        left_out = len(self._sharded) - len(self._pipeline._pipelined_modules)
        if left_out:
            raise Unsupported(f"TorchRec's pipeline left {left_out} of {len(self._sharded)} sharded modules out")

    def prepare(self, batch: LocalBatch) -> None:
        """Fill the pipeline with the one batch again and again, so that what a step sends is of this batch alone."""
        self.fill(repeat(batch))

    def lap(self, phase: StepPhase) -> None:
        """Note that the phase ends here; nothing outside a step."""
        if self._stamps is not None:
            self._stamps.marks.append(self.clock.now())
            self._stamps.laps.append(phase)

    def train_on(self, batch: LocalBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return loss and logits of a batch whose lookups have been exchanged: the pipeline's forward pass."""
        self.enter(StepPart.OUTPUT)
        sent = dict(zip([module.key for module in self._sharded], self._tables(batch)))
        own_rows = {m.key: self._own_rows(m, batch) for m in self.modules if isinstance(m, ReplicatedRows)}
        outputs = [self._receive(module, batch, sent, own_rows) for module in self.modules]
        self.lap(StepPhase.OUTPUT)
        assembled = self._assembled(outputs, batch)
        if self._stamps is not None:
            self._watch_vectors(assembled, self._stamps)
        logits = self.dense(batch.dense, assembled)
        loss = self.loss(logits, batch.labels)
        self.lap(StepPhase.DENSE)
        return loss, logits

    def zero_grad(self) -> None:
        """Forget the gradients of the step before."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        self.lap(StepPhase.UPDATE)

    def step(self) -> None:
        """Step what the backward pass did not."""
        self._return_gradients()
        for optimizer in self.optimizers:
            optimizer.step()
        self._update_rows()
        self.lap(StepPhase.UPDATE)

    def _own_rows(self, module: ReplicatedRows, batch: LocalBatch) -> list[torch.Tensor]:
        self.lap(StepPhase.OUTPUT)
        vectors = module.compute(batch.sparse.jagged[module.key])
        self._end_lookup(vectors)
        return vectors

    def _receive(
        self, module: TableModule, batch: LocalBatch, sent: dict[ModuleKey, Any], own_rows: dict[ModuleKey, Any]
    ) -> Any:
        if isinstance(module, ShardedModule):
            return module.arrived(sent[module.key])
        return module.output(batch.sparse.jagged[module.key], own_rows[module.key])

    def _watch(self, module: ShardedModule) -> None:
        """Stamp a module's kernels where the pipeline runs them."""
        sharded = module.module
        # TorchRec's own would name columns that were pooled together before they were sent.
        begin = module.look_up_and_send if module.key.pooled else sharded.compute_and_output_dist

        def stamped(context: Any, received: Any) -> Any:
            self.lap(StepPhase.INPUT)
            sent = begin(context, received)
            self.lap(StepPhase.OUTPUT)
            return sent

        sharded.compute_and_output_dist = stamped
        for lookup in sharded._lookups:
            lookup.register_forward_pre_hook(lambda *_: self.lap(StepPhase.OUTPUT))
            lookup.register_forward_hook(lambda module, inputs, vectors: self._end_lookup([vectors]))

    def _end_lookup(self, vectors: list[torch.Tensor]) -> None:
        self.lap(StepPhase.LOOKUP)
        if self._stamps is not None:
            time_kernels(vectors, self.clock, self._stamps)


class _Tables(torch.nn.Module):
    """What of the model the pipeline traces: which sharded module takes which lookups of a batch."""

    def __init__(self, modules: list[TableModule]) -> None:
        super().__init__()
        # Numbers: a key is a tuple with names, which the trace would make a call of.
        self._places = [place for place, module in enumerate(modules) if isinstance(module, ShardedModule)]
        self._sharded = torch.nn.ModuleList(module.module for module in modules if isinstance(module, ShardedModule))

    def forward(self, batch: LocalBatch) -> list[Any]:
        """Return what each sharded module will give, in their order."""
        return [sharded(batch.sparse.in_turn[place]) for place, sharded in zip(self._places, self._sharded)]


class _Pipeline(TrainPipelineSparseDist):  # type: ignore[misc]
    """TorchRec's pipeline, with a stamp after each of its parts."""

    def __init__(self, step: PipelinedStep, tables: _Tables) -> None:
        super().__init__(tables, step, step.device, custom_model_fwd=step.train_on)
        self._step = step

    def start_sparse_data_dist(self, batch: Any, context: Any) -> None:
        """Begin the exchange of a batch's lookups, which is that of their numbers."""
        self._step.enter(StepPart.INPUT)
        super().start_sparse_data_dist(batch, context)
        self._step.lap(StepPhase.INPUT)

    def wait_sparse_data_dist(self, context: Any) -> None:
        """Wait for the numbers, and begin the exchange of the lookups themselves."""
        self._step.enter(StepPart.INPUT)
        super().wait_sparse_data_dist(context)
        self._step.lap(StepPhase.INPUT)

    def wait_for_lookups(self) -> None:
        """Wait for the next batch's lookups, which stay where they are."""
        for request in self.contexts[0].input_dist_tensors_requests.values() if self.contexts else ():
            for one in request.awaitables:
                if isinstance(one, KJTAllToAllTensorsAwaitable):
                    for work in getattr(one, "_awaitables", ()):
                        work.wait()

    def _backward(self, losses: torch.Tensor) -> None:
        self._step.enter(StepPart.BACKWARD)
        super()._backward(losses)
        self._step.lap(StepPhase.OUTPUT_BACKWARD)
