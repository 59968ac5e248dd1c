from pathlib import Path

from tasks.download import Job, Patience
from tasks.download_progress import DownloadProgress
from tasks.hub import HubFile, ModelSource
from tasks.model_files import Place


def job(name: str, size: int, directory: Path) -> Job:
    file = HubFile("acme/tiny", name, "c" * 40, "e" * 64, size)
    source = ModelSource("LIS_GGUF", "acme/tiny", name, "")
    return Job(source, file, Place(directory / name, "acme/tiny", name))


def test_one_line_a_second_with_percent_size_and_speed_over_all_files(tmp_path: Path) -> None:
    now_s = 0.0
    lines: list[tuple[str, float]] = []
    jobs = [job("a.gguf", 300_000_000, tmp_path), job("b.gguf", 100_000_000, tmp_path)]
    progress = DownloadProgress(lambda *line: lines.append(line), jobs, lambda: now_s)
    tell = progress.file_started(jobs[0])
    now_s = 0.9
    tell("downloading", 100_000_000)
    now_s = 2.0
    tell("downloading", 200_000_000)
    now_s = 3.0
    tell("verifying", 150_000_000)
    progress.file_done(jobs[0])
    now_s = 5.0
    progress.file_started(jobs[1])
    progress.file_done(jobs[1])
    assert lines == [
        ("downloading a.gguf: 0 % of 300 MB", 0.0),
        ("downloading a.gguf: 66 % of 300 MB, 100.0 MB/s", 0.5),
        ("verifying a.gguf: 50 % of 300 MB", 0.75),
        ("downloaded a.gguf: 300 MB", 0.75),
        ("downloading b.gguf: 0 % of 100 MB", 0.75),
        ("downloaded b.gguf: 100 MB", 1.0),
    ]


def test_a_partial_file_counts_as_done_and_not_as_speed(tmp_path: Path) -> None:
    one = job("a.gguf", 1000, tmp_path)
    one.place.prepare()
    one.partial.write_bytes(bytes(400))
    assert one.missing_bytes() == 600
    lines: list[tuple[str, float]] = []
    DownloadProgress(lambda *line: lines.append(line), [one], lambda: 0.0).file_started(one)
    assert lines == [("downloading a.gguf: 40 % of 0 MB", 0.4)]


def test_waits_double_up_to_a_bound_and_heed_the_hub() -> None:
    patience = Patience(first_wait_s=0.5, longest_wait_s=8.0)
    assert [patience.wait_s(failures) for failures in range(1, 8)] == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    assert patience.wait_s(1, asked_s=5.0) == 5.0
    assert patience.wait_s(1, asked_s=3600.0) == 30.0
