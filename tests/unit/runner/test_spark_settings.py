"""The settings of a session where the user says nothing: who can reach its ports, and where its blocks are."""

from __future__ import annotations

import pytest

from penstock.runner.spark.settings import (
    LOOPBACK,
    SECRET,
    java_options,
    local_folders,
    memory_variables,
    network_settings,
    unprotected,
)


def chosen(master: str, **given: str) -> dict[str, str]:
    settings = {f"spark.{name.replace('_', '.')}": value for name, value in given.items()}
    return network_settings({"spark.master": master, **settings}, "random")


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*,4]", "local-cluster[2,1,1024]"])
def test_a_local_master_listens_on_loopback_and_has_a_secret(master: str) -> None:
    settings = chosen(master)
    assert settings["spark.driver.host"] == settings["spark.driver.bindAddress"] == LOOPBACK
    assert settings["spark.authenticate"] == "true"
    assert settings.get(SECRET) == ("random" if master.startswith("local-cluster") else None)


@pytest.mark.parametrize("master", ["yarn", "k8s://https://kube:443"])
def test_a_cluster_that_generates_secrets_authenticates_and_keeps_its_address(master: str) -> None:
    assert chosen(master) == {"spark.authenticate": "true"}


def test_yarn_with_its_shuffle_service_is_left_as_the_cluster_was_set_up() -> None:
    assert chosen("yarn", shuffle_service_enabled="true") == {}


def test_a_standalone_cluster_authenticates_only_with_the_secret_that_the_user_passes() -> None:
    assert chosen("spark://host:7077") == {}
    assert unprotected({"spark.master": "spark://host:7077"})
    assert chosen("spark://host:7077", authenticate_secret="theirs") == {"spark.authenticate": "true"}


@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,1024]", "yarn", "spark://host:7077"])
def test_settings_of_the_user_are_kept(master: str) -> None:
    settings = chosen(master, authenticate="false", driver_host="10.0.0.1")
    assert settings == {}
    assert not unprotected({"spark.master": master, "spark.authenticate": "false"})


def test_the_folders_for_blocks_are_found_as_spark_finds_them() -> None:
    settings = {"spark.local.dir": "/data/a, /data/b"}
    assert local_folders({}, settings, "/tmp") == ("/data/a", "/data/b")
    assert local_folders({"SPARK_LOCAL_DIRS": "/fast"}, settings, "/tmp") == ("/fast",)
    assert local_folders({}, {}, "/tmp") == ("/tmp",)


def test_glibc_keeps_few_heaps_unless_the_user_chooses_their_number() -> None:
    assert memory_variables({}) == {"MALLOC_ARENA_MAX": "2"}
    assert memory_variables({"MALLOC_ARENA_MAX": "16"}) == {"MALLOC_ARENA_MAX": "16"}


def test_the_jvm_takes_little_memory_unless_the_user_chooses_a_heap_or_a_collector() -> None:
    assert "-Xms" in java_options("log4j", "/tmp", of_user="-Dname=value")
    assert "-Xms" not in java_options("log4j", "/tmp", heap="8g")
    # The JVM does not start with two collectors.
    chosen = java_options("log4j", "/tmp", of_user="-XX:+UseZGC")
    assert chosen.count("GC") == 1
    assert chosen.endswith("-XX:+UseZGC")
