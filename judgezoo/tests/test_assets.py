"""The asset store: sources, hashes, interruption, offline switch, and that nothing is executed."""

from __future__ import annotations

import gc
import hashlib
import io
import json
import tarfile
import threading
import warnings
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from judgezoo.assets import AssetStore, read_catalog
from judgezoo.assets.extract import extract
from judgezoo.errors import AssetError, AssetMissing, HashMismatch, OfflineError, UnknownName

TEXT = "Rate the answer {a}.\n"
DIGEST = hashlib.sha256(TEXT.encode()).hexdigest()


def catalog(tmp_path: Path, *rows: dict, name: str = "catalog.yaml") -> Path:
    path = tmp_path / name
    path.write_text(yaml.safe_dump(list(rows)))
    return path


def local_row(**fields: object) -> dict:
    sources = [{"kind": "local", "env": "MY_FILES", "path": "prompt.txt"}]
    return {"id": "mine/prompt", "license": "MIT", "sha256": DIGEST, "sources": sources, **fields}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "files"
    path.mkdir()
    (path / "prompt.txt").write_text(TEXT)
    monkeypatch.setenv("MY_FILES", str(path))
    return path


def make_wheel(folder: Path, name: str, members: dict[str, str]) -> Path:
    folder.mkdir(exist_ok=True)
    wheel = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    tags = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files = {**members, f"{info}/METADATA": metadata, f"{info}/WHEEL": tags}
    record = "".join(f"{member},,\n" for member in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(wheel, "w") as archive:
        for member, content in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(member, content)
    return wheel


def test_a_missing_asset_names_the_command(tmp_path: Path, folder: Path) -> None:
    path = catalog(tmp_path, local_row())
    store = AssetStore(tmp_path / "c", catalogs=[path], command="adversariallm assets fetch")
    with pytest.raises(AssetMissing, match="run: adversariallm assets fetch mine/prompt"):
        store.get("mine/prompt")
    with pytest.raises(UnknownName, match="did you mean mine/prompt"):
        store.get("mine/promt")


def test_fetch_then_get_and_the_record_beside_it(tmp_path: Path, folder: Path) -> None:
    store = AssetStore(tmp_path / "c", catalogs=[catalog(tmp_path, local_row())])
    asset = store.fetch("mine/prompt")
    assert asset.sha256 == DIGEST and store.text("mine/prompt") == TEXT
    assert asset.path == store.get("mine/prompt")
    record = json.loads(asset.path.with_name(".asset.json").read_text())
    assert record["sha256"] == DIGEST and record["pin"] == "verified"
    assert not list((tmp_path / "c").glob(".fetch-*"))


def test_other_bytes_are_refused_with_both_hashes(tmp_path: Path, folder: Path) -> None:
    (folder / "prompt.txt").write_text(TEXT + "x")
    store = AssetStore(tmp_path / "c", catalogs=[catalog(tmp_path, local_row())])
    with pytest.raises(HashMismatch) as caught:
        store.fetch("mine/prompt")
    got = hashlib.sha256((TEXT + "x").encode()).hexdigest()
    assert DIGEST in str(caught.value) and got in str(caught.value)
    with pytest.raises(AssetMissing):
        store.get("mine/prompt")


def test_one_flipped_byte_in_the_cache_is_refused_and_refetched(
    tmp_path: Path, folder: Path
) -> None:
    store = AssetStore(tmp_path / "c", catalogs=[catalog(tmp_path, local_row())])
    path = store.fetch("mine/prompt").path
    data = bytearray(path.read_bytes())
    data[3] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(HashMismatch):
        store.text("mine/prompt")
    assert store.verify(["mine/prompt"])[0].state == "damaged"
    store.fetch("mine/prompt")
    assert store.verify(["mine/prompt"])[0].state == "ok"


def test_an_unverified_pin_is_trusted_once_and_then_held(tmp_path: Path, folder: Path) -> None:
    store = AssetStore(tmp_path / "c", catalogs=[catalog(tmp_path, local_row(sha256=None))])
    path = store.fetch("mine/prompt").path
    assert store.row("mine/prompt").pin == "unverified"
    path.write_text("changed")
    with pytest.raises(HashMismatch):
        store.get("mine/prompt")


def test_sources_are_tried_in_order_until_one_has_the_bytes(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "prompt.txt").write_text("not it")
    monkeypatch.setenv("OTHER_FILES", str(other))
    sources = [
        {"kind": "local", "env": "UNSET_FILES", "path": "prompt.txt"},
        {"kind": "local", "env": "OTHER_FILES", "path": "prompt.txt"},
        {"kind": "local", "env": "MY_FILES", "path": "prompt.txt"},
    ]
    path = catalog(tmp_path, local_row(sources=sources))
    store = AssetStore(tmp_path / "c", catalogs=[path])
    store.fetch("mine/prompt")
    assert store.verify(["mine/prompt"])[0].source == "$MY_FILES/prompt.txt"


def test_when_no_source_works_every_reason_is_given(tmp_path: Path) -> None:
    sources = [{"kind": "local", "env": name, "path": "p.txt"} for name in ("A_DIR", "B_DIR")]
    path = catalog(tmp_path, local_row(sources=sources))
    with pytest.raises(AssetError, match=r"(?s)A_DIR is not set.*B_DIR is not set"):
        AssetStore(tmp_path / "c", catalogs=[path]).fetch("mine/prompt")


def test_the_offline_switch_forbids_the_network_and_only_that(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = {"kind": "wheel", "wheel": "demo==1.0", "member": "demo/p.txt"}
    remote = local_row(id="mine/remote", sources=[wheel])
    path = catalog(tmp_path, local_row(), remote)
    monkeypatch.setenv("JUDGEZOO_OFFLINE", "1")
    store = AssetStore(tmp_path / "c", catalogs=[path])
    assert store.fetch("mine/prompt").sha256 == DIGEST
    with pytest.raises(OfflineError, match="offline switch"):
        store.fetch("mine/remote")


def test_a_wheel_is_data_and_its_code_never_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag = tmp_path / "executed"
    code = f"open({str(flag)!r}, 'w')\nPROMPT = 'Rate the answer {{a}}.\\n'\n"
    wheel = make_wheel(tmp_path / "index", "demo", {"demo/prompts.py": code})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    source = {
        "kind": "wheel",
        "wheel": "demo==1.0",
        "wheel_sha256": digest,
        "member": "demo/prompts.py",
        "symbol": "PROMPT",
    }
    good = local_row(sources=[source])
    bad = local_row(id="mine/bad", sources=[{**source, "wheel_sha256": "0" * 64}])
    store = AssetStore(tmp_path / "c", catalogs=[catalog(tmp_path, good, bad)])
    assert store.fetch("mine/prompt").path.read_text() == TEXT
    assert not flag.exists()
    with pytest.raises(HashMismatch, match="wheel demo==1.0"):
        store.fetch("mine/bad")


def test_many_members_of_a_wheel_are_one_asset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = {
        "demo/b.yaml": "value: '{{ prompt }}{% raw %} {and} {% endraw %}'\n",
        "demo/a.yaml": "value: '{% raw %}{ first {% endraw %}{{ \"{% endraw %}\" }}{{ prompt }}'\n",
        "demo/other.txt": "not one of them",
    }
    wheel = make_wheel(tmp_path / "index", "demo", members)
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    source = {"kind": "wheel", "wheel": "demo==1.0", "member": "demo/*.yaml"}
    steps = [["each_yaml", "value"], ["jinja_plain"], ["json"]]
    rows = [
        local_row(id="mine/all", sha256=None, sources=[{**source, "transform": steps}]),
        local_row(id="mine/none", sources=[{**source, "member": "demo/*.csv"}]),
    ]
    store = AssetStore(tmp_path / "c", catalogs=[catalog(tmp_path, *rows)])
    found = json.loads(store.fetch("mine/all").path.read_text())
    assert found == ["{ first {% endraw %}{{ prompt }}", "{{ prompt }} {and} "]
    with pytest.raises(AssetError, match="nothing matches"):
        store.fetch("mine/none")
    with pytest.raises(AssetError, match="more than fill slots"):
        extract(b"value: ['a {% if b %}']", "a.yaml", "value", [["jinja_plain"], ["json"]])


def packing_npm(folder: Path, member: str, content: str) -> Path:
    """A program named npm that packs one file, as `npm pack` does; its folder."""
    packed = folder / "packed.tgz"
    with tarfile.open(packed, "w:gz") as archive:
        facts = tarfile.TarInfo(member)
        facts.size = len(content.encode())
        archive.addfile(facts, io.BytesIO(content.encode()))
    program = folder / "bin" / "npm"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\ncp {packed} "$5/demo-1.0.0.tgz"\n')
    program.chmod(0o755)
    return packed


def test_a_member_of_an_npm_package_is_read_and_its_hash_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = packing_npm(tmp_path, "package/dict/data.txt", TEXT)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin:/usr/bin")
    digest = hashlib.sha256(packed.read_bytes()).hexdigest()
    source = {
        "kind": "npm",
        "npm": "demo@1.0.0",
        "npm_sha256": digest,
        "member": "package/dict/data.txt",
    }
    rows = [
        local_row(sources=[source]),
        local_row(id="mine/bad", sources=[{**source, "npm_sha256": "0" * 64}]),
        local_row(id="mine/none", sources=[{**source, "member": "package/other"}]),
    ]
    store = AssetStore(tmp_path / "c", catalogs=[catalog(tmp_path, *rows)])
    assert store.fetch("mine/prompt").path.read_text() == TEXT
    with pytest.raises(HashMismatch, match="npm package demo@1.0.0"):
        store.fetch("mine/bad")
    with pytest.raises(AssetError, match="has no member package/other"):
        store.fetch("mine/none")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AssetError, match="install npm"):
        store.fetch("mine/none")


def remote_row(kind: str) -> dict:
    source = {
        "github": {"kind": "github", "github": "o/r", "commit": "c1", "path": "a/prompt.txt"},
        "hub": {"kind": "hub", "hub": "o/r", "revision": "c1", "path": "a/prompt.txt"},
    }[kind]
    return local_row(sources=[source])


def serve(status: int) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/o/r/c1/a/prompt.txt" else 404)
            self.end_headers()
            self.wfile.write(TEXT.encode())

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    return server


@pytest.mark.parametrize("status", [200, 500])
def test_github_files_are_read_over_http(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    server = serve(status)
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr("judgezoo.assets.sources._GITHUB_RAW", address)
    monkeypatch.setattr("judgezoo.assets.sources._check_resolves", lambda host: None)
    store = AssetStore(tmp_path / "c", catalogs=[catalog(tmp_path, remote_row("github"))])
    if status == 200:
        assert store.fetch("mine/prompt").sha256 == DIGEST
    else:
        with pytest.raises(AssetError, match="HTTPError"):
            store.fetch("mine/prompt")
    with warnings.catch_warnings():
        # pooch leaves the connection of a failed response to the garbage collector.
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    server.shutdown()
    server.server_close()


def test_hub_files_are_asked_for_by_revision(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def download(repo: str, path: str, **fields: object) -> str:
        asked.append((repo, path, fields["revision"], fields["repo_type"]))
        return str(folder / "prompt.txt")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    monkeypatch.setattr("judgezoo.assets.sources._check_resolves", lambda host: None)
    store = AssetStore(tmp_path / "c", catalogs=[catalog(tmp_path, remote_row("hub"))])
    assert store.fetch("mine/prompt").sha256 == DIGEST
    assert asked == [("o/r", "a/prompt.txt", "c1", "model")]


@pytest.mark.parametrize("kind", ["github", "hub"])
def test_a_name_that_does_not_resolve_fails_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    calls = []

    def fail(host: str, port: int) -> None:
        calls.append(host)
        raise OSError

    monkeypatch.setattr("judgezoo.assets.sources.socket.getaddrinfo", fail)
    monkeypatch.setattr("judgezoo.assets.sources.urllib.request.getproxies", dict)
    store = AssetStore(tmp_path / "c", catalogs=[catalog(tmp_path, remote_row(kind))])
    with pytest.raises(AssetError, match="cannot be reached"):
        store.fetch("mine/prompt")
    assert len(calls) == 1


def test_an_interrupted_download_leaves_no_half_file(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = AssetStore(tmp_path / "c", catalogs=[catalog(tmp_path, local_row())])

    def die(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("judgezoo.assets.store.os.replace", die)
        with pytest.raises(KeyboardInterrupt):
            store.fetch("mine/prompt")
    assert store.verify(["mine/prompt"])[0].state == "missing"
    assert store.fetch("mine/prompt").sha256 == DIGEST


@pytest.mark.parametrize("bad", ["../up", "/abs", "a//b", "a/../b", "", "a b", ".hidden"])
def test_an_id_cannot_leave_the_cache(tmp_path: Path, bad: str) -> None:
    with pytest.raises(AssetError, match="an id holds"):
        read_catalog(catalog(tmp_path, local_row(id=bad)))


def test_catalog_errors_name_file_row_and_field(tmp_path: Path) -> None:
    path = catalog(tmp_path, local_row(licence="MIT"))
    with pytest.raises(AssetError, match=r"catalog.yaml: mine/prompt: licence"):
        read_catalog(path)
    one, two = (catalog(tmp_path, local_row(), name=f"{n}.yaml") for n in ("one", "two"))
    with pytest.raises(AssetError, match=r"one.yaml and in .*two.yaml"):
        AssetStore(tmp_path / "c", catalogs=[one, two]).ids()


PYTHON = """
TOP = "top" + " level"
NAMED = {"key": ["zero", "one"]}
ITEMS = ["Aa", "Bb"]
class Judge:
    INSIDE = "in class"
    TYPED: str = "typed"
    def build(self, goal):
        self.chat = [{"role": "user", "content": "text"}]
        prompt = f"Do {goal} with {{braces}} and {self.x.y}"
        return f"R {goal}"
CALL = open("nope")
"""


@pytest.mark.parametrize(
    ("symbol", "expected"),
    [
        ("TOP", "top level"),
        ("NAMED[key][1]", "one"),
        ("Judge::INSIDE", "in class"),
        ("Judge::TYPED", "typed"),
        ("Judge::build::self.chat[0][content]", "text"),
        ("Judge::build::prompt", "Do {goal} with {braces} and {self.x.y}"),
        ("Judge::build::<return>", "R {goal}"),
    ],
)
def test_python_symbols(symbol: str, expected: str) -> None:
    assert extract(PYTHON.encode(), "a.py", symbol, ()).decode() == expected


@pytest.mark.parametrize("symbol", ["ABSENT", "Judge::none::x", "CALL", "NAMED[key][7]", "ITEMS"])
def test_what_is_no_constant_text_is_an_error(symbol: str) -> None:
    with pytest.raises(AssetError):
        extract(PYTHON.encode(), "a.py", symbol, ())


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([["join", "|"]], "Aa|Bb"),
        ([["lower"], ["join", "\n"]], "aa\nbb"),
        ([["json"]], '["Aa", "Bb"]'),
        ([["prefix_items", " ", [1]], ["join", ","]], "Aa, Bb"),
        ([["join", "A"], ["replace_nth", "A", 1, "x"]], "AaxBb"),
        ([["join", "\n"], ["reindent", [2, 0], [0, 1]]], "  Aa\nBb "),
        ([["join", ""], ["prepend", "<"], ["append", ">"]], "<AaBb>"),
        ([["join", ""], ["regex", "a.", "\\1"]], "A\\1b"),
    ],
)
def test_transforms(steps: list, expected: str) -> None:
    assert extract(PYTHON.encode(), "a.py", "ITEMS", steps).decode() == expected


def test_yaml_and_json_paths_and_whole_files() -> None:
    data = yaml.safe_dump({"a": [{"b": "deep"}]}).encode()
    assert extract(data, "x.yaml", "a.0.b", ()) == b"deep"
    assert extract(b'{"a": {"b": "c"}}', "x.json", "a.b", ()) == b"c"
    assert extract(b"\xff\x00raw", "x.bin", None, ()) == b"\xff\x00raw"
    with pytest.raises(AssetError, match="no 'q'"):
        extract(data, "x.yaml", "a.0.q", ())


def test_yaml_tags_are_not_executed() -> None:
    with pytest.raises(yaml.YAMLError):
        extract(b"a: !!python/object/apply:os.getcwd []", "x.yaml", "a", ())


def test_the_own_catalog_is_complete_and_holds_no_text() -> None:
    store = AssetStore()
    assert len(store.ids()) >= 34
    for asset_id in store.ids():
        row = store.row(asset_id)
        assert row.pin == "verified" and row.license and row.sources


@pytest.mark.network
def test_the_published_texts_have_the_pinned_hashes(tmp_path: Path) -> None:
    store = AssetStore(tmp_path / "c")
    ids = [i for i in store.ids() if i != "judge/harmbench_gpt4"]
    assets = store.fetch_many(ids)
    assert [a.sha256 for a in assets] == [store.row(i).sha256 for i in ids]
