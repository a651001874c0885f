"""App profiles: each instance has a default one, and writes take the cluster of theirs."""

from __future__ import annotations

import pytest

from penstock_emulators.bigtable.profiles import AppProfile, ProfileError, Profiles

HOME = "projects/p/instances/i"


def single(cluster: str):
    profile = AppProfile()
    profile.single_cluster_routing.cluster_id = cluster
    return profile


def test_the_default_profile_routes_to_one_cluster_and_allows_row_transactions() -> None:
    default = Profiles().get(HOME, "")
    assert default.name == f"{HOME}/appProfiles/default"
    assert default.single_cluster_routing.allow_transactional_writes


def test_a_write_has_the_cluster_of_its_profile_or_the_default_one() -> None:
    profiles = Profiles()
    profiles.create(HOME, "mine", single("c2"))
    names = ("mine", "", "unknown")
    assert [profiles.cluster(HOME, name) for name in names] == ["c2", "cluster-1", "cluster-1"]
    assert profiles.cluster("projects/p/instances/other", "mine") == "cluster-1"


def test_an_update_changes_the_named_fields_only() -> None:
    profiles = Profiles()
    profiles.create(HOME, "mine", single("c2"))
    wanted = single("c3")
    wanted.name, wanted.description = f"{HOME}/appProfiles/mine", "new"
    assert profiles.update(wanted, ["description"]).single_cluster_routing.cluster_id == "c2"
    updated = profiles.update(wanted, ["single_cluster_routing.cluster_id"])
    assert (updated.single_cluster_routing.cluster_id, updated.description) == ("c3", "new")


def test_names_are_unique_and_unknown_names_are_errors() -> None:
    profiles = Profiles()
    profiles.create(HOME, "mine", single("c2"))
    for wrong in (
        lambda: profiles.create(HOME, "mine", single("c2")),
        lambda: profiles.create(HOME, "default", single("c2")),
        lambda: profiles.get(HOME, "other"),
        lambda: profiles.delete(f"{HOME}/appProfiles/other"),
    ):
        with pytest.raises(ProfileError):
            wrong()
    profiles.delete(f"{HOME}/appProfiles/mine")
    assert len(profiles.listed(HOME)) == 1
