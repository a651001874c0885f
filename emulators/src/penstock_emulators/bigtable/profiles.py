"""App profiles, which Google's emulator lacks: the cluster of a write, and whether a change stream may be read."""

from __future__ import annotations

from typing import Any

from google.cloud.bigtable_admin_v2.types import instance as instance_types

DEFAULT_CLUSTER = "cluster-1"
DEFAULT_PROFILE = "default"

AppProfile = instance_types.AppProfile.pb()

_FIELDS = ("description", "multi_cluster_routing_use_any", "single_cluster_routing", "standard_isolation")


class ProfileError(LookupError):
    """There is no such profile, or there is one already."""


class Profiles:
    """The app profiles of every instance; each instance has a `default` one, routed to a single cluster."""

    def __init__(self) -> None:
        """Only the default profiles."""
        self._profiles: dict[tuple[str, str], Any] = {}

    def get(self, instance: str, profile: str) -> Any:
        """Return a profile; "" is the default one.

        Raises:
            ProfileError: there is none of this name.
        """
        profile = profile or DEFAULT_PROFILE
        known = self._profiles.get((instance, profile))
        # Every instance of the service has a default profile, also without a call that creates it.
        if known is None and profile == DEFAULT_PROFILE:
            known = self._profiles[instance, profile] = _default(instance)
        if known is None:
            raise ProfileError(f"the instance has no app profile {profile!r}")
        return known

    def create(self, instance: str, profile: str, wanted: Any) -> Any:
        """Add a profile and return it."""
        if (instance, profile) in self._profiles or profile == DEFAULT_PROFILE:
            raise ProfileError(f"the instance has an app profile {profile!r} already")
        created = AppProfile()
        created.CopyFrom(wanted)
        created.name = f"{instance}/appProfiles/{profile}"
        created.etag = "1"
        self._profiles[instance, profile] = created
        return created

    def update(self, wanted: Any, paths: list[str]) -> Any:
        """Change the fields of a profile that `paths` name and return it."""
        known = self.named(wanted.name)
        # A mask may name a field inside of a routing policy, which is replaced as a whole.
        for path in {path.split(".")[0] for path in paths} & set(_FIELDS):
            known.ClearField(path)
            # A description is a text and has no presence.
            if wanted.HasField(path) if path != "description" else True:
                _copy(wanted, known, path)
        known.etag = str(int(known.etag) + 1)
        return known

    def delete(self, name: str) -> None:
        """Delete a profile."""
        self.named(name)
        instance, _, profile = name.partition("/appProfiles/")
        del self._profiles[instance, profile]

    def listed(self, instance: str) -> list[Any]:
        """Return the profiles of an instance."""
        self.get(instance, DEFAULT_PROFILE)
        return [profile for (where, _), profile in sorted(self._profiles.items()) if where == instance]

    def named(self, name: str) -> Any:
        """Return the profile with a full resource name."""
        instance, _, profile = name.partition("/appProfiles/")
        return self.get(instance, profile)

    def cluster(self, instance: str, profile: str) -> str:
        """Return the cluster of a write: the default one if the profile names none or is unknown."""
        known = self._profiles.get((instance, profile or DEFAULT_PROFILE))
        return (known.single_cluster_routing.cluster_id if known is not None else "") or DEFAULT_CLUSTER


def _default(instance: str) -> Any:
    profile = AppProfile(name=f"{instance}/appProfiles/{DEFAULT_PROFILE}", etag="1")
    profile.single_cluster_routing.cluster_id = DEFAULT_CLUSTER
    profile.single_cluster_routing.allow_transactional_writes = True
    return profile


def _copy(source: Any, target: Any, path: str) -> None:
    if path == "description":
        target.description = source.description
    else:
        getattr(target, path).CopyFrom(getattr(source, path))
