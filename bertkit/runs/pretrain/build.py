"""From settings and a store to the parts of a run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from bertkit.checkpoint.folder import Folder, check_writable, read_folder
from bertkit.checkpoint.locate import locate
from bertkit.data.feed import Phase, PretrainingFeed, WordStatesOf, phases
from bertkit.data.packing import PACKINGS
from bertkit.data.store import Store
from bertkit.data.windows import Windows
from bertkit.errors import UserError
from bertkit.model.heads import Model
from bertkit.model.inference import choose
from bertkit.notify import note
from bertkit.objectives.causal import NextToken
from bertkit.objectives.electra import Electra, generator_config
from bertkit.objectives.masked import Masked, MaskedTaught, WordStates
from bertkit.settings.model import Config, rows_for
from bertkit.settings.pretrain import PretrainSettings, TeachingSettings
from bertkit.tasks.base import Item, Reading, Task
from bertkit.tasks.batches import SupervisedFeed
from bertkit.tasks.embed import Likeness, Taught
from bertkit.text.tokenizer import Tokenizer
from bertkit.training.distributed import World
from bertkit.training.loop import Objective

PAIR_HEAD = {"next-sentence": "next_sentence", "sentence-order": "order"}


@dataclass
class Components:
    """The parts of a pretraining run. folders: what is written at the end, by subfolder ("" is the run's own)."""

    objective: Objective
    store: Store
    train_documents: np.ndarray
    held_out: np.ndarray
    folders: dict[str, Folder]
    settings: PretrainSettings
    taught: list[tuple[Task, list[Item]]]  # texts with a teacher's vectors, pairs with its cosines
    words_teacher: WordStatesOf | None = None  # provides the states matched at every word

    @property
    def model(self) -> Model:
        """The model a pretraining run trains."""
        return self.folders[""].model


def build(settings: PretrainSettings, world: World) -> Components:
    """Build everything of a pretraining run but the loop."""
    store = Store.open(settings.data, verify=world.is_main)
    # Next-sentence pairs need two documents on each side of the split.
    least = 2 / store.documents if settings.held_out and store.documents >= 4 else 0.0
    train, held_out = store.split(max(settings.held_out, least), settings.seed)
    torch.manual_seed(settings.seed)
    source = read_folder(locate(settings.init)) if settings.init else None
    if settings.add_tokens and source is None:
        raise UserError("--add-tokens extends the vocabulary of an existing model: pass the model with --init.")
    if source is not None:
        if settings.add_tokens:
            from bertkit.runs.pretrain.extend import extended

            store, source = extended(store, source, settings, world)
        store.check(source.tokenizer)
        settings = _from_source(settings, source)
    config = _for_tokenizer(settings.model, store.tokenizer)
    longest = max(length for _, length in settings.length_plan)
    if longest > config.max_tokens:
        raise UserError(
            f"lengths has {longest} tokens, but the model's limit is {config.max_tokens}: raise model.max_tokens "
            "(and model.positions), or shorten the lengths."
        )
    heads = {"mlm": 0, PAIR_HEAD[settings.packing]: 2} if settings.packing in PAIR_HEAD else {"mlm": 0}
    about: dict[str, Any] = {"task": "pretraining", "facts": {}}
    folders: dict[str, Folder] = {}
    if settings.objective == "replaced":
        model = Model(config, {"replaced": 1}, pooler=False)
        generator = Model(generator_config(config, settings.generator), {"mlm": 0}, pooler=False)
        objective: Objective = Electra(model, generator)
        folders["generator"] = Folder(generator, store.tokenizer, settings.family, about=dict(about))
    else:
        if source is not None:
            model = _with_heads(source, heads)
        else:
            model = Model(config, heads, pooler=len(heads) > 1)
        objective = NextToken(model) if settings.objective == "next-token" else Masked(model)
    if settings.shard and settings.minimal_pairs:
        raise UserError("--minimal-pairs needs whole weights, and --shard spreads them. Leave one of them out.")
    if settings.causal and not isinstance(objective, Masked):
        raise UserError(f"causal is for masked-word pretraining, not for {settings.objective}. Leave it out.")
    taught: list[tuple[Task, list[Item]]] = []
    words_teacher = None
    if settings.teaching != TeachingSettings() and not settings.teacher:
        raise UserError("[teaching] says how to match a teacher, and there is none: pass --teacher MODEL.")
    if settings.teacher_texts:
        objective, taught = _taught(settings, objective, store.tokenizer)
    if settings.teacher and (settings.teaching.pairs or not settings.teacher_texts):
        words_teacher = _word_teacher(settings, objective, store, world)
    folders[""] = Folder(model, store.tokenizer, settings.family, about=about)
    for name in sorted(folders):  # the run's own first
        check_writable(folders[name])
    model.untrained = ()
    objective.set_precision(choose(settings.precision, world.device))
    objective.to(world.device)
    if settings.shard:
        world.shard(objective)
    if settings.compile:
        model.encoder.compile(dynamic=True)
    return Components(objective, store, train, held_out, folders, settings, taught, words_teacher)


def _for_tokenizer(config: Config, tokenizer: Tokenizer) -> Config:
    """A pretrained model's numbers that follow from the tokenizer. RoBERTa counts positions from its padding id."""
    padding = tokenizer.pad_id or 0
    first = padding + 1 if config.first_position else 0
    positions = config.positions and config.positions - config.first_position + first
    return replace(
        config, vocabulary=rows_for(tokenizer.size), padding=padding, first_position=first, positions=positions
    )  # fmt: skip


def _from_source(settings: PretrainSettings, source: Folder) -> PretrainSettings:
    """Config, family and packing of the model that pretraining continues."""
    if source.family == "electra":
        raise UserError(
            "--init of an ELECTRA model is not supported: its generator is not in the folder. "
            "Continue from a BERT, RoBERTa, ALBERT, DistilBERT or ModernBERT model."
        )
    pairs = {head: packing for packing, head in PAIR_HEAD.items()}
    single = "full-sentences" if settings.packing in PAIR_HEAD else settings.packing
    packing = next((pairs[head] for head in source.model.heads if head in pairs), single)
    objective = "next-token" if source.model.config.causal else "masked"
    note(f"Continuing {settings.init}: {source.family}, {objective}, {packing}.")
    return replace(settings, family=source.family, packing=packing, objective=objective, model=source.model.config)


def _with_heads(source: Folder, heads: dict[str, int]) -> Model:
    """The model that pretraining continues, with the heads it needs; existing ones keep their weights."""
    if set(source.model.heads) == set(heads):
        return source.model
    model = Model(source.model.config, heads, pooler="mlm" not in heads or len(heads) > 1)
    state = {k: v for k, v in source.model.state_dict().items() if k in model.state_dict()}
    missing = model.load_state_dict(state, strict=False).missing_keys
    new = sorted({name.split(".")[1] if name.startswith("heads") else "pooler" for name in missing})
    if new:
        note(f"{' and '.join(new)}: not in the checkpoint, trained from scratch.")
    return model


def _taught(
    settings: PretrainSettings, objective: Objective, tokenizer: Tokenizer
) -> tuple[Objective, list[tuple[Task, list[Item]]]]:
    """A pretraining objective with a teacher of sentences: texts with its vectors, pairs with its cosines if wanted."""
    from bertkit.inference.teacher import teacher

    if not settings.teacher or settings.teacher_texts is None:
        raise UserError("--teacher-texts needs --teacher: pass the model whose sentence vectors to learn.")
    if not isinstance(objective, Masked):
        raise UserError(f"--teacher is for masked-word pretraining, not for {settings.objective}. Leave it out.")
    task = Taught(teacher=teacher(settings.teacher, settings.out / "teacher", settings.precision, settings.device))
    examples = task.read(settings.teacher_texts, Reading(), labelled=False)
    task.fit_labels(examples)
    windows = Windows(objective.model.config.max_tokens, "truncate")
    items = task.encode(examples, tokenizer, windows)
    if cut := sum(item.cut > 0 for item in items):
        note(
            f"{settings.teacher_texts}: {cut} of {len(items)} rows are longer than the model's limit and are truncated."
        )
    taught: list[tuple[Task, list[Item]]] = [(task, items)]
    if settings.teaching.likeness:
        pairs = task.with_cosines(examples)
        if not pairs:
            raise UserError(
                f"teaching.likeness needs pairs of texts, and {settings.teacher_texts} has single ones. "
                "Give it a column text_b, or leave teaching.likeness out."
            )
        likeness = Likeness()
        likeness.fit_labels(pairs)
        taught.append((likeness, likeness.encode(pairs, tokenizer, windows)))
    return MaskedTaught(objective.model, task, settings.teaching.likeness), taught


def _word_teacher(settings: PretrainSettings, objective: Objective, store: Store, world: World) -> WordStatesOf:
    """For pretraining with a teacher whose states are matched at every word; the objective gets the maps to them."""
    from bertkit.inference.teacher import WordTeacher, start_vectors

    if not isinstance(objective, Masked):
        raise UserError(f"--teacher is for masked-word pretraining, not for {settings.objective}. Leave it out.")
    plan = settings.teaching
    folder = read_folder(locate(settings.teacher))
    if plan.vectors == "teacher" and not settings.init:
        tokens = objective.model.encoder.embeddings.tokens.weight
        with torch.no_grad():
            tokens.copy_(start_vectors(folder, store.tokenizer, *tokens.shape))
    pairs = plan.layer_pairs(folder.model.config.depth, objective.model.config.depth)
    teacher = WordTeacher(folder, [upper for upper, _ in pairs], store.tokenizer, settings.precision, str(world.device))
    layers = [layer for _, layer in pairs]
    objective.match = WordStates(layers, objective.model.config.width, teacher.width, plan.masked)
    objective.match_weight = plan.at
    if not plan.cache:
        return teacher
    if settings.plan:
        note("--plan measures with the teacher at every step; the cache would be made before the first one.")
        return teacher
    from bertkit.inference.word_cache import open_cache

    if world.is_main:  # the others wait for the complete cache
        open_cache(store, teacher, plan.cache, settings.length_plan[0][1])
    world.wait()
    return open_cache(store, teacher, plan.cache, settings.length_plan[0][1])


def plan_of(built: Components, steps: int) -> list[Phase]:
    """A pretraining run's plan: lengths and batches by fraction of the steps."""
    s = built.settings
    typical = partial(PACKINGS[s.packing].typical, built.store)
    return phases(steps, s.length_plan, s.batch_tokens, s.ramp, typical)


def make_feed(built: Components, steps: int, world: World) -> PretrainingFeed:
    """Build a pretraining run's feed for this many steps, with the teacher's texts if there are any."""
    s = built.settings
    beside = [
        SupervisedFeed(
            items, task, batch=s.teacher_batch, seed=s.seed, micro_tokens=s.micro_tokens, rank=world.rank,
            ranks=world.size,
        )
        for task, items in built.taught
    ]  # fmt: skip
    return PretrainingFeed(
        built.store, built.train_documents, packing=s.packing, masking=s.hiding,
        plan=plan_of(built, steps), seed=s.seed, short_prob=s.short_prob,
        micro_tokens=s.micro_tokens, rank=world.rank, ranks=world.size, causal=s.causal, beside=beside,
        teacher=built.words_teacher, share=s.teaching.share,
    )  # fmt: skip
