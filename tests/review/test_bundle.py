"""Whether a bundle is always the same, opens safely, and gives nothing away."""

import io
import tarfile
from pathlib import Path

import pytest

from stages import stages_of
from tests.fake_training import Launch, Rig, within
from tests.review.bundles import HOST, made_rig, packed
from trn_validate.errors import EvidenceError, UsageError
from trn_validate.review import manifest
from trn_validate.review.archive import opened, pack
from trn_validate.review.bundle import bundle, size_of
from trn_validate.review.verify import verify

KEY = "q9" * 20
SECRETS = {
    "access key": ("AKIAIOSFODNN7EXAMPLE", "AKIAIOSFODNN7EXAMPLE"),
    "temporary access key": ("ASIAIOSFODNN7EXAMPLE", "ASIAIOSFODNN7EXAMPLE"),
    "secret access key": (f"aws_secret_access_key = {KEY}", KEY),
    "secret access key, JSON": (f'"SecretAccessKey": "{KEY}"', KEY),
    "session token": (f"AWS_SESSION_TOKEN={KEY}", KEY),
    "session token, JSON": (f'{{"SessionToken": "{KEY}"}}', KEY),
    "GitHub token": (f"ghp_{KEY}", KEY),
    "GitHub server token": (f"ghs_{KEY}", KEY),
    "GitHub fine-grained token": (f"github_pat_{KEY}", KEY),
    "Hugging Face token": (f"hf_{KEY}", KEY),
    "Hugging Face variable": (f"HF_TOKEN={KEY}", KEY),
    "authorization header": (f"Authorization: Bearer {KEY}", KEY),
    "basic authorization": (f"authorization: basic {KEY}", KEY),
    "bearer": (f"bearer {KEY}", KEY),
    "password in a URL": (f"https://me:{KEY}@example.com/simple", KEY),
    "password": (f"password={KEY}", KEY),
    "password, JSON": (f'"password": "{KEY}"', KEY),
    "API key": (f"WANDB_API_KEY={KEY}", KEY),
    "private key, named": (f"private_key: {KEY}", KEY),
    "private key, PEM": (f"-----BEGIN RSA PRIVATE KEY-----{KEY}-----END RSA PRIVATE KEY-----", KEY),
    "instance id": ("on i-0123456789abcdef0 now", "i-0123456789abcdef0"),
    "account in an ARN": ("arn:aws:iam::210987654321:role/x", "210987654321"),
    "account id": ("account_id: 210987654321", "210987654321"),
    "account id, JSON": ('"AccountId": "210987654321"', "210987654321"),
    "account of a registry": ("210987654321.dkr.ecr.us-east-1.amazonaws.com", "210987654321"),
    "address as a host": ("ip-10-11-12-13.ec2.internal", "ip-10-11-12-13"),
    "Slack token": (f"xoxb-{KEY}", KEY),
    "GitLab token": (f"glpat-{KEY}", KEY),
    "Google key": (f"AIza{KEY}", KEY),
    "JSON web token": (f"eyJ{KEY}.eyJ{KEY}.{KEY}", KEY),
    "key of a model's provider": (f"sk-{KEY}", KEY),
    "package token": (f"pypi-{KEY}", KEY),
    "presigned URL": (f"https://b.s3.amazonaws.com/x?X-Amz-Signature={KEY}", KEY),
    "home folder": (f"{Path.home()}/secret-place", f"{Path.home()}/"),
    "host name": (f"rank 0 on {HOST}:29500", HOST),
    "host name, short": ("rank 0 on trainer-07 waits", "trainer-07"),
}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    """A healthy run."""
    return made_rig(tmp_path_factory.mktemp("bundle"))


@pytest.fixture(scope="module")
def archive(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its bundle, without any tensors."""
    return packed(rig, tmp_path_factory.mktemp("packed") / "b.tar.gz")


def contents(path: Path) -> dict[str, bytes]:
    """Files of an archive by name, its root taken off."""
    with tarfile.open(path) as tar:
        found = {}
        for member in tar:
            file = tar.extractfile(member)
            assert file is not None
            found[member.name.partition("/")[2]] = file.read()
    return found


def test_the_same_folder_gives_the_same_bytes(rig: Rig, archive: Path, tmp_path: Path) -> None:
    assert packed(rig, tmp_path / "again.tar.gz").read_bytes() == archive.read_bytes()


def test_members_have_neither_time_nor_owner_and_are_sorted(archive: Path) -> None:
    with tarfile.open(archive) as tar:
        members = tar.getmembers()
    assert {(m.mtime, m.uid, m.gid, m.uname, m.gname) for m in members} == {(0, 0, 0, "", "")}
    assert [m.name for m in members] == sorted(m.name for m in members)


def test_tensors_above_the_limit_are_left_out_and_listed(rig: Rig, archive: Path) -> None:
    files = contents(archive)
    listed = manifest.parse(files[manifest.NAME].decode())
    left_out = manifest.parse(files[manifest.LEFT_OUT].decode())
    assert any(name.endswith("gradient.stage-0.safetensors") for name in left_out)
    assert left_out.keys() == listed.keys() - files.keys()
    assert all(rig.run.folder.joinpath(name).is_file() for name in left_out)


def test_with_room_for_them_tensors_are_taken(rig: Rig, tmp_path: Path) -> None:
    whole = packed(rig, tmp_path / "whole.tar.gz", limit=2**30)
    assert manifest.LEFT_OUT not in contents(whole)
    found = verify(whole, stages_of)
    assert not found.differences
    assert not found.not_recomputed


def test_nothing_private_is_in_it(archive: Path) -> None:
    assert not [name for name in contents(archive) if ".private" in name or "hashes" in name]


def _plants(launch: Launch) -> None:
    texts = "\n".join(text for text, _ in SECRETS.values())
    launch.log += texts + "\n"
    launch.what = " & ".join(f"<{text}>" for text, _ in SECRETS.values())
    if launch.answer is not None:
        launch.answer["result"] = texts


def test_no_planted_secret_is_in_a_bundle(tmp_path: Path) -> None:
    planted = within("import-triton", _plants)
    rig = made_rig(tmp_path / "run", planted)
    everything = b"\n".join(contents(packed(rig, tmp_path / "b.tar.gz")).values()).decode()
    assert "<redacted>" in everything
    assert "&lt;redacted&gt;" in everything, "XML shows it too"
    given_away = [name for name, (_, secret) in SECRETS.items() if secret in everything]
    assert not given_away
    assert len(SECRETS) >= 30


@pytest.mark.parametrize("name", SECRETS)
def test_a_file_that_gives_something_away_is_refused(rig: Rig, tmp_path: Path, name: str) -> None:
    planted = rig.run.folder / "environment.imports" / "1" / "planted.txt"
    planted.write_text(f"all is well\n{SECRETS[name][0]}\n")
    try:
        with pytest.raises(EvidenceError, match=r"planted\.txt:2"):
            bundle(rig.run, tmp_path / "b.tar.gz", 0, stages_of)
    finally:
        planted.unlink()
    assert not (tmp_path / "b.tar.gz").exists()


def test_an_escaped_secret_is_refused_too(rig: Rig, tmp_path: Path) -> None:
    planted = rig.run.folder / "environment.imports" / "1" / "planted.xml"
    planted.write_text(f"<a b='password&#61;{KEY}'/>\n")
    try:
        with pytest.raises(EvidenceError, match=r"planted\.xml:1"):
            bundle(rig.run, tmp_path / "b.tar.gz", 0, stages_of)
    finally:
        planted.unlink()


def test_a_file_that_is_none_of_ours_is_refused(rig: Rig, tmp_path: Path) -> None:
    foreign = rig.run.folder / "core.1234"
    foreign.write_bytes(b"\x7fELF")
    try:
        with pytest.raises(EvidenceError, match=r"core\.1234"):
            bundle(rig.run, tmp_path / "b.tar.gz", 0, stages_of)
    finally:
        foreign.unlink()


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("500kB", 500_000), ("1MiB", 2**20), ("1.5 GiB", 3 * 2**29)]
)
def test_a_size_is_read(text: str, size: int) -> None:
    assert size_of(text) == size


@pytest.mark.parametrize("text", ["", "much", "-1", "1 TB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        size_of(text)


def _member(name: str, kind: bytes = tarfile.REGTYPE) -> bytes:
    packed_bytes = io.BytesIO()
    with tarfile.open(fileobj=packed_bytes, mode="w:gz") as tar:
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname = kind, "/etc/passwd"
        tar.addfile(entry, io.BytesIO())
    return packed_bytes.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        _member("../outside"),
        _member("/absolute"),
        _member("run/../../outside"),
        _member("run/link", tarfile.SYMTYPE),
        _member("run/link", tarfile.LNKTYPE),
        _member("run/fifo", tarfile.FIFOTYPE),
        _member("run\\windows"),
        _member("./run/file"),
    ],
)
def test_a_member_that_leads_out_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "bad.tar.gz"
    path.write_bytes(data)
    with pytest.raises(EvidenceError, match="unsafe"), opened(path):
        pass
    assert [one.name for one in tmp_path.iterdir()] == ["bad.tar.gz"]


def test_a_member_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as tar:
        for _ in range(2):
            tar.addfile(tarfile.TarInfo("run/a"), io.BytesIO())
    path = tmp_path / "bad.tar.gz"
    path.write_bytes(data.getvalue())
    with pytest.raises(EvidenceError, match="twice"), opened(path):
        pass


@pytest.mark.parametrize("cut", [0, 10, 0.5, 0.99])
def test_a_damaged_archive_is_refused(archive: Path, tmp_path: Path, cut: float) -> None:
    data = archive.read_bytes()
    path = tmp_path / "cut.tar.gz"
    path.write_bytes(data[: int(cut * len(data)) if cut < 1 else int(cut)])
    with pytest.raises(EvidenceError, match=r"cut\.tar\.gz"):
        verify(path, stages_of)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="no run"):
        verify(tmp_path, stages_of)
    with pytest.raises(EvidenceError, match="no such file"):
        verify(tmp_path / "absent", stages_of)
    two = tmp_path / "two.tar.gz"
    two.write_bytes(pack("run", {}))
    with pytest.raises(EvidenceError, match="one folder"):
        verify(two, stages_of)
