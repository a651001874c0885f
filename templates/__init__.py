"""Pipeline templates: the parameters of ready-made pipelines, as the code declares them.

`parameter` reads the type and the limits of one parameter; `template` has one template for each source and sink. The
command line (`penstock.cli`) validates user input against them and runs the pipeline.
"""

from penstock.templates.parameter import Parameter
from penstock.templates.template import Template, UnknownTemplateError, template_named, templates

__all__ = [
    "Parameter",
    "Template",
    "UnknownTemplateError",
    "template_named",
    "templates",
]
