"""What is packed: the same tree gives the same digest, and what does not belong stays here."""

import io
import os
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.submit import packing
from cli.submit.account import list_input_files
from cli.submit.packing import NEVER, Patterns, Source, pack
from cli.submit.problem import Problem


def tree(folder: Path, *names: str, **texts: str) -> Path:
    """Files in a folder, each with its name or with what is given as its text."""
    for name in (*names, *texts):
        path = folder / name.replace("__", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(texts.get(name, name))
    return folder


def unpacked(source: Source) -> list[tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(source.archive()), mode="r:gz") as archive:
        return archive.getmembers()


def test_the_same_tree_gives_the_same_archive_at_any_path_and_time(tmp_path):
    """Times, owners and the order of the disk leave no trace; a changed byte, name or mode does."""
    first = tree(tmp_path / "a", "train.py", "lib/model.py", "lib/data.py")
    second = tree(tmp_path / "b", "lib/data.py", "lib/model.py", "train.py")
    os.utime(second / "train.py", (1, 1))
    assert pack(first).digest == pack(second).digest
    assert pack(first).archive() == pack(second).archive()
    assert {(member.mtime, member.uid, member.uname) for member in unpacked(pack(first))} == {(0, 0, "")}
    (second / "train.py").chmod(0o755)
    assert pack(first).digest != pack(second).digest, "what may be executed is part of it"
    (second / "train.py").chmod(0o644)
    (second / "lib/data.py").write_text("other")
    assert pack(first).digest != pack(second).digest


@given(st.dictionaries(st.text("ab/", min_size=1), st.binary(max_size=4), max_size=3), st.data())
def test_different_files_never_share_a_digest(files, data):
    """Where one name or content ends and the next begins is part of the digest."""
    one = {name: (content, False) for name, content in files.items()}
    other = dict(one)
    name = data.draw(st.text("ab/", min_size=1))
    other[name] = (other.get(name, (b"", False))[0] + b"x", False)
    assert Source("a", one).digest != Source("a", other).digest


def test_histories_environments_caches_secrets_and_checkpoints_are_never_packed(tmp_path):
    """Only the code goes."""
    tree(tmp_path, ".git/config", ".venv/bin/python", "checkpoints/last.pt", "lib/checkpoints/x.pt", ".env")
    tree(tmp_path, "lib/__pycache__/m.pyc", "checkpoint-500/model.pt", "step-000000100/model.pt", "wandb/run.log")
    tree(tmp_path, "train.py", "lib/m.py", "conf/a.yaml", ".hidden")
    assert sorted(pack(tmp_path).files) == [".hidden", "conf/a.yaml", "lib/m.py", "train.py"]
    assert "checkpoints/last.pt" in pack(tmp_path, exclude=["!checkpoints"]).files, "unless it is asked for"


@pytest.mark.parametrize(
    ("pattern", "out", "kept"),
    [
        ("data", ["data", "lib/data"], ["data.py", "mydata"]),
        ("*.csv", ["a.csv", "lib/b.csv"], ["a.csv.py"]),
        ("/notes.md", ["notes.md"], ["lib/notes.md"]),
        ("lib/*.txt", ["lib/a.txt"], ["lib/deep/a.txt", "a.txt"]),
        ("lib/**", ["lib/a", "lib/deep/a"], ["other/lib"]),
        ("**/tmp", ["tmp", "a/b/tmp"], ["tmp.py"]),
        ("run-[0-9]?", ["run-12"], ["run-ab", "run-1"]),
        ("[!a].py", ["b.py"], ["a.py"]),
        ("lib/**/x", ["lib/x", "lib/a/b/x"], ["lib", "x", "lib/a"]),
        ("*a" * 60 + "*b", ["a" * 200 + "b"], ["a" * 200 + "c"]),
        ("**/" * 60 + "b", ["a/" * 90 + "b"], ["a/" * 90 + "c"]),
    ],
)
def test_patterns_are_those_of_gitignore(pattern, out, kept):
    """A bare name fits anywhere, one with a slash from the top."""
    patterns = Patterns([pattern])
    assert [name for name in out + kept if patterns.leave_out(name, is_folder=False)] == out


def test_a_folder_pattern_keeps_files_and_the_last_pattern_wins():
    patterns = Patterns(["data/", "*.bin", "!keep.bin", "# a remark", ""])
    assert patterns.leave_out("data", is_folder=True)
    assert not patterns.leave_out("data", is_folder=False)
    assert patterns.leave_out("x/a.bin", is_folder=False)
    assert not patterns.leave_out("x/keep.bin", is_folder=False)


def test_a_script_is_packed_with_its_neighbours_and_a_folder_knows_its_script(tmp_path):
    """`train.py` or `main.py`, or the only one; else it must be named."""
    tree(tmp_path, "train.py", "model.py")
    assert pack(tmp_path / "model.py").entry == "model.py"
    assert pack(tmp_path / "model.py").files.keys() == {"train.py", "model.py"}
    assert pack(tmp_path).entry == "train.py"
    assert pack(tmp_path, entry="model.py").entry == "model.py"
    (tmp_path / "train.py").unlink()
    assert pack(tmp_path).entry == "model.py"
    tree(tmp_path, "other.py")
    with pytest.raises(Problem, match="model.py, other.py") as problem:
        pack(tmp_path)
    assert "--entry" in problem.value.remedy


def test_links_to_files_are_packed_as_those_files_and_other_links_are_refused(tmp_path):
    """A link may name a file of the same project; nothing is left out in silence."""
    outside = tree(tmp_path / "outside", "shared.py")
    code = tree(tmp_path / "code", "train.py")
    (tmp_path / ".git").mkdir()
    (code / "shared.py").symlink_to(outside / "shared.py")
    assert pack(code).files["shared.py"] == (b"shared.py", False)
    (code / "lib").symlink_to(outside)
    with pytest.raises(Problem, match="lib is a link to a folder"):
        pack(code)
    assert "lib/shared.py" not in pack(code, exclude=["lib"]).files
    (code / "gone.py").symlink_to(outside / "gone.py")
    with pytest.raises(Problem, match=r"gone\.py cannot be read: .*No such file"):
        pack(code, exclude=["lib"])
    (code / "gone.py").unlink()
    (code / "gone.py").symlink_to("gone.py")
    with pytest.raises(Problem, match=r"gone\.py"):
        pack(code, exclude=["lib"])
    with open(os.fsencode(code) + b"/\xff.txt", "wb"), pytest.raises(Problem, match="is not a name in UTF-8"):
        pack(code, exclude=["lib", "gone.py"])
    assert "train.py" in pack(code, exclude=["lib", "gone.py", "*.txt"]).files


@pytest.mark.threat("T33")
@pytest.mark.parametrize("target", ["../.aws/credentials", "deep/../../.aws/credentials", "next/../.env", "id_rsa"])
def test_no_link_of_a_project_sends_a_file_of_the_home_folder_or_a_secret(tmp_path, target):
    """Whoever wrote the repository chose its links; a link to the user's own secret within it is passed over."""
    tree(tmp_path, ".aws/credentials")
    code = tree(tmp_path / "clone", "train.py", "deep/a.py", "next/b.py", ".env", "id_rsa")
    (code / ".git").mkdir()
    (code / "vocab.json").symlink_to(target)
    try:
        packed = {content for content, _ in pack(code).files.values()}
    except Problem as problem:
        assert "is a link to" in problem.what and "outside of" in problem.what
    else:
        assert packed == {b"train.py", b"deep/a.py", b"next/b.py"}


@pytest.mark.threat("T33")
def test_usual_secrets_are_never_packed_whatever_a_project_takes_back(tmp_path):
    """Files in which tools keep passwords and keys are left out of code and data; the command line can name one."""
    secrets = [
        *(".env", ".env.local", ".env.production", ".envrc", "id_rsa", "id_ed25519", ".netrc", ".npmrc", ".pypirc"),
        *("credentials.json", ".git-credentials", "kubeconfig", "secrets.yaml", "secrets.toml", "a.key", "a.p12"),
        *("a.tfstate", "a.tfstate.backup", "prod.tfvars", "a.pem", "a.jks", ".aws/config", ".ssh/config", "x/.aws/a"),
        *(".git/config", ".git/modules/lib/config", "lib/.git/logs/HEAD", ".hg/hgrc", "lib/.docker/config.json"),
        *(".kube/config", ".docker/config.json", "service-account-prod.json", "client_secret_1.json", ".pgpass"),
        *(".streamlit/secrets.toml", ".gnupg/a", ".huggingface/token", "kaggle.json", ".s3cfg", ".boto", "a.ppk"),
        *("lib/.env", "lib/id_rsa", "lib/credentials", "B.PEM", "ID_RSA.old", "Credentials.JSON", ".Env.prod"),
    ]
    tree(tmp_path, *secrets, "train.py", "credentials.py", ".env.example", "keys.py")
    harmless = {"train.py", "credentials.py", ".env.example", "keys.py"}
    assert pack(tmp_path, exclude=["!*", "!.aws", "!*.key", "!.git"]).files.keys() - {".huggingface"} == harmless
    assert list_input_files(tmp_path).keys() == harmless
    tree(tmp_path / "code", "train.py")
    assert ".env.local" in pack(tmp_path / "code", dependencies=[str(tmp_path / ".env.local")]).files


@pytest.mark.parametrize(
    ("path", "entry", "exclude", "words"),
    [
        ("missing.py", "", (), "does not exist"),
        (".", "missing.py", (), "--entry missing.py: there is no such file"),
        ("train.py", "", ("[z-a]",), r"--exclude \[z-a\]: bad character range"),
        ("train.py", "", ("[", "train.py"), "train.py is not among what would be packed"),
    ],
)
def test_a_submission_that_cannot_run_is_refused_with_the_remedy(tmp_path, path, entry, exclude, words):
    tree(tmp_path, "train.py")
    with pytest.raises(Problem, match=words) as problem:
        pack(tmp_path / path, entry=entry, exclude=exclude)
    assert problem.value.remedy


def test_data_among_the_code_is_refused_by_name(tmp_path, monkeypatch):
    """A forgotten data set is not uploaded; the largest files are named."""
    monkeypatch.setattr(packing, "MOST_BYTES", 1 << 20)
    tree(tmp_path, "train.py")
    (tmp_path / "images.npy").write_bytes(bytes(2 << 20))
    with pytest.raises(Problem, match=r"the largest: images\.npy 2 MB") as problem:
        pack(tmp_path)
    assert "--exclude" in problem.value.remedy and "--input" in problem.value.remedy
    assert "images.npy" not in pack(tmp_path, exclude=["*.npy"]).files


def test_the_home_folder_is_not_packed(tmp_path, monkeypatch):
    """A script that lies loose there would take everything along."""
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    with pytest.raises(Problem, match="the whole folder"):
        pack(tree(tmp_path, "train.py") / "train.py")


def test_what_is_never_packed_reads_as_patterns():
    """Each of them leaves out what it names."""
    patterns = Patterns(NEVER)
    assert all(patterns.leave_out(each.rstrip("/").replace("*", "1"), is_folder=True) for each in NEVER)


def test_a_dependency_is_packed_beside_the_script_under_its_own_name(tmp_path):
    """A folder with what belongs to it, a file as it is; two of one name are refused."""
    script = tree(tmp_path / "job", "train.py") / "train.py"
    common = tree(tmp_path / "common", "losses.py", "deep/a.py", "deep/__pycache__/a.pyc")
    lone = tree(tmp_path / "else", "helpers.py") / "helpers.py"
    packed = pack(script, dependencies=[str(common), str(lone)])
    assert sorted(packed.files) == ["common/deep/a.py", "common/losses.py", "helpers.py", "train.py"]
    assert packed.entry == "train.py"
    for given_paths, words in (
        ([str(lone), str(lone)], "helpers.py is packed already"),
        ([str(tmp_path / "gone")], "there is no such"),
    ):
        with pytest.raises(Problem, match=words):
            pack(script, dependencies=given_paths)


def test_a_command_runs_in_place_of_a_script(tmp_path):
    """In a folder without one; together with a script it is refused."""
    folder = tree(tmp_path, "Makefile")
    packed = pack(folder, command="make data && ./go")
    assert packed.entry.endswith(".sh") and packed.files[packed.entry][0] == b"make data && ./go\n"
    assert "Makefile" in packed.files and packed.digest != pack(folder, command="make").digest
    with pytest.raises(Problem, match="--command"):
        pack(tree(folder, "train.py") / "train.py", command="make")
