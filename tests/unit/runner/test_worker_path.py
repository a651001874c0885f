"""Workers import PySpark from folders, where its compiled modules are kept, and not from Spark's archives."""

from __future__ import annotations

from collections.abc import Callable

from penstock.runner.spark.worker_path import without_archives

SITE = "/venv/lib/site-packages"
ARCHIVES = ["/python/lib/pyspark.zip", "/python/lib/py4j-0.10.9.9-src.zip"]


def files(*packages: str) -> Callable[[str], bool]:
    return lambda path: path in [f"{package}/__init__.py" for package in packages]


def test_the_archives_of_a_pip_installation_are_left_out() -> None:
    path = ["", f"{SITE}/pyspark{ARCHIVES[0]}", f"{SITE}/pyspark{ARCHIVES[1]}", "/mine", SITE]
    assert without_archives(path, files(f"{SITE}/pyspark", f"{SITE}/py4j")) == ["", "/mine", SITE]


def test_the_folder_of_a_distribution_takes_the_place_of_its_archive() -> None:
    path = ["/opt/spark/python/lib/pyspark.zip", "/opt/spark/python/lib/py4j-0.10.9.9-src.zip", SITE]
    found = without_archives(path, files("/opt/spark/python/pyspark"))
    assert found == ["/opt/spark/python", "/opt/spark/python/lib/py4j-0.10.9.9-src.zip", SITE]


def test_an_archive_stays_where_the_path_leads_to_another_pyspark() -> None:
    path = [f"{SITE}/pyspark/python/lib/pyspark.zip", "/other", SITE]
    assert without_archives(path, files("/other/pyspark", f"{SITE}/pyspark")) == path
    assert without_archives(path[:2], files(f"{SITE}/pyspark")) == path[:2]


def test_archives_of_users_stay() -> None:
    path = ["/mine/pyspark.zip", "/mine/python/lib/other.zip", SITE]
    assert without_archives(path, files(f"{SITE}/pyspark")) == path
