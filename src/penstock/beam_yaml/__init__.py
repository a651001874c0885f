"""Penstock's sources, transforms and sinks in Beam YAML. Needs the extra `yaml`.

    providers:
      - include: /path/to/penstock/beam_yaml/providers.yaml     # printed by: python -m penstock.beam_yaml

    pipeline:
      type: chain
      transforms:
        - type: ReadFromSpannerChangeStream
          config: {project: my-project, instance: main, database: shop, change_stream: AllOrders}
        - type: FormatEvents
          config: {format: debezium}
        - type: WriteToJsonLines
          config: {output: /data/changes}

`PROVIDERS` is the path of the provider file; `penstock.beam_yaml.transforms` has what it names.
"""

from __future__ import annotations

from pathlib import Path

PROVIDERS = Path(__file__).with_name("providers.yaml")
