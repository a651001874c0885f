"""Pipeline templates: parameters in YAML, their validation, and the `penstock` command.

    penstock describe spanner-to-files
    penstock run spanner-to-files --set project=my-project …

`parameter` and `template` say what can be given, `given` where it came from, `configuration` what it comes
to; `launch` runs it, `progress` and `console` show how it goes, `cli` is the command over all of them.
"""

from penstock.templates.configuration import Configuration, ConfigurationError, configure
from penstock.templates.parameter import Parameter
from penstock.templates.template import Template, UnknownTemplateError, template_named, templates

__all__ = [
    "Configuration",
    "ConfigurationError",
    "Parameter",
    "Template",
    "UnknownTemplateError",
    "configure",
    "template_named",
    "templates",
]
