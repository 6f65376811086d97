"""A power cut keeps only what was synced: every moment of a save is replayed with the rest lost (R4)."""

import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from bertkit.errors import DamagedFile
from bertkit.files import atomic
from bertkit.files.atomic import write_folder
from bertkit.training.checkpoints import newest_generation
from tests.support.save_routines import CHANGING, ROUTINES, opened_model, save, start_listed, start_model, write_again


@pytest.fixture
def disk():
    """A folder in memory where there is one: thousands of syncs are the point here, not their cost."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        yield Path(folder)


class Recording:
    """What one routine did to the disk, in order, by node: names point to nodes, as on a real disk.

    `states()` gives what a power cut may leave after each prefix: an entry in a folder survives for certain
    only after that folder was synced, data only after its file was. Of what is not certain, none, all, any
    beginning, any single change and all but any single one are tried; lost data is dropped, zeroed or kept.
    """

    def __init__(self, root):
        self.root, self.paths, self.open_paths = root, {root: 0}, {}
        self.first = {0: {}}  # folder node -> names; file nodes are in `data`
        self.data = {}
        self.events = []
        for path in sorted(root.rglob("*")):
            node = self._add(path)
            self.first[self.paths[path.parent]][path.name] = node
            if path.is_dir():
                self.first[node] = {}
            else:
                self.data[node] = path.read_bytes()
        self.real = dict(vars(atomic.calls))
        self.fresh = set()

    def _add(self, path):
        self.paths[path] = len(self.paths) + 1000 * len(getattr(self, "events", ()))
        return self.paths[path]

    def _entry(self, path, node):
        return self.paths[Path(path).parent], Path(path).name, node

    def __enter__(self):
        for name in CHANGING:
            setattr(atomic.calls, name, getattr(self, name))
        return self

    def __exit__(self, *_):
        vars(atomic.calls).update(self.real)

    def mkdir(self, path):
        self.real["mkdir"](path)
        self.events.append(("names", [self._entry(path, self._add(Path(path)))]))
        self.fresh.add(self.paths[Path(path)])

    def open(self, path, flags, *mode):
        handle = self.real["open"](path, flags, *mode)
        if flags & os.O_CREAT:
            self.events.append(("names", [self._entry(path, self._add(Path(path)))]))
        self.open_paths[handle] = self.paths[Path(path)]
        return handle

    def write(self, handle, data):
        self.events.append(("data", self.open_paths[handle], bytes(data)))
        return self.real["write"](handle, data)

    def fsync(self, handle):
        self.events.append(("sync", self.open_paths[handle]))
        self.real["fsync"](handle)

    def rename(self, old, new):
        self.real["rename"](old, new)
        old, new = Path(old), Path(new)
        self.events.append(("names", [self._entry(old, None), self._entry(new, self.paths[old])]))
        for path in [path for path in self.paths if path == old or old in path.parents]:
            self.paths[new / path.relative_to(old)] = self.paths.pop(path)

    def unlink(self, path):
        self.real["unlink"](path)
        self.events.append(("names", [self._entry(path, None)]))
        del self.paths[Path(path)]

    def rmdir(self, path):
        self.real["rmdir"](path)
        self.events.append(("names", [self._entry(path, None)]))
        del self.paths[Path(path)]

    def states(self):
        """Yields (number of events before the cut, {path: content, or None for a folder}), each once."""
        known = set()
        for cut in range(len(self.events) + 1):
            events = self.events[:cut]
            changes = [(at, event[1]) for at, event in enumerate(events) if event[0] == "names"]
            synced = {node: at for at, event in enumerate(events) if event[0] == "sync" for node in [event[1]]}
            sure = {at for at, edits in changes if any(synced.get(folder, -1) > at for folder, _, _ in edits)}
            loose = [at for at, _ in changes if at not in sure]
            choices = [loose[:n] for n in range(len(loose) + 1)] + [[at] for at in loose]
            choices += [[other for other in loose if other != at] for at in loose]
            for choice in choices:
                folders = {node: dict(names) for node, names in self.first.items()} | {node: {} for node in self.fresh}
                for at, edits in changes:
                    if at in sure or at in choice:
                        for folder, name, node in edits:
                            folders[folder].pop(name, None) if node is None else folders[folder].update({name: node})
                for fate in ("dropped", "zeroed", "kept"):
                    tree = dict(self._tree(folders, events, synced, fate))
                    key = (cut == len(self.events), frozenset(tree.items()))
                    if key not in known:
                        known.add(key)
                        yield cut, tree

    def _tree(self, folders, events, synced, fate, node=0, path=Path()):
        for name, child in folders[node].items():
            if child in folders:
                yield path / name, None
                yield from self._tree(folders, events, synced, fate, child, path / name)
            else:
                data = self.data.get(child, b"")
                for at, event in enumerate(events):
                    if event[0] == "data" and event[1] == child:
                        is_safe = fate == "kept" or at < synced.get(child, -1)
                        data += event[2] if is_safe else bytes(len(event[2])) if fate == "zeroed" else b""
                yield path / name, data


def put(tree, folder):
    folder.mkdir()
    for path, data in sorted(tree.items()):
        (folder / path).mkdir() if data is None else (folder / path).write_bytes(data)
    return folder


def write_model_unsynced(folder):
    atomic.calls.mkdir(folder / "sub")
    for name in ("config.json", "model.safetensors", "sub/x.json"):
        handle = atomic.calls.open(folder / name, os.O_WRONLY | os.O_CREAT, 0o666)
        atomic.calls.write(handle, b"new")
        os.close(handle)


RECORDED = {
    **ROUTINES,
    "model folder": (start_listed, lambda f: write_folder(f, write_model_unsynced), opened_model, write_again),
    "early folder": (start_model, lambda f: write_folder(f, write_model_unsynced), opened_model, write_again),
}


@pytest.mark.parametrize("routine", RECORDED)
def test_a_power_cut_at_any_moment_leaves_the_old_or_the_new(disk, notes, routine):
    start, run, opened, again = RECORDED[routine]
    start(disk / "run")
    with Recording(disk / "run") as recording:
        run(disk / "run")
    outcomes = Counter()
    for count, (cut, tree) in enumerate(recording.states()):
        folder = put(tree, disk / f"state{count}")
        outcomes[opened(folder), cut == len(recording.events)] += 1
        if count % 7 == 0:
            again(folder)
        shutil.rmtree(folder)
    assert {found for found, _ in outcomes} == {"old", "new"}
    assert not outcomes["old", True]  # what has returned is safe


def test_a_power_cut_in_the_very_first_save_leaves_it_or_nothing(disk):
    (disk / "run").mkdir()
    with Recording(disk / "run") as recording:
        save(disk / "run", 3)
    outcomes = set()
    for count, (cut, tree) in enumerate(recording.states()):
        found = newest_generation(put(tree, disk / str(count)))
        outcomes.add((found and found.step, cut == len(recording.events)))
    assert outcomes == {(None, False), (3, False), (3, True)}


def test_the_power_cuts_would_find_a_save_without_syncs(disk):
    (disk / "run").mkdir()
    with Recording(disk / "run") as recording:
        save(disk / "run", 3)
    recording.events = [event for event in recording.events if event[0] != "sync"]
    with pytest.raises(DamagedFile):
        for number, (_, tree) in enumerate(recording.states()):
            newest_generation(put(tree, disk / str(number)))
