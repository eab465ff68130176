"""Render the templates in arguments, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import ObjectStoragePath, XComArg
from jinja2 import Environment, TemplateError

from workflow_automation_provider.client.wording import member, one_line
from workflow_automation_provider.exceptions import InvalidRequestError

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions._internal.templater import LiteralValue
    from airflow.sdk.definitions._internal.templater import Templater as _Templater

    Resolvable = XComArg | LiteralValue
    """What Airflow puts a value in place of, before the task is executed."""
else:
    _Templater = object
    Resolvable = XComArg


class TextKeeper(_Templater):
    """
    Have Airflow render only what is a template.

    Of other text, Jinja would change the line breaks, and a native environment the type.
    """

    _if_not_rendered = "Nothing was sent."
    """What it means that a template cannot be rendered."""

    def render_template(
        self,
        content: Any,
        context: Context,
        jinja_env: Environment | None = None,
        seen_oids: set[int] | None = None,
    ) -> Any:
        """
        Return a value with its templates rendered.

        :raises InvalidRequestError: if Jinja cannot render one, naming it
        """
        if jinja_env is None:
            jinja_env = self.get_template_env()

        is_text = isinstance(content, str | ObjectStoragePath)
        if is_text and not self._is_template(str(content), jinja_env):
            return content

        try:
            return super().render_template(content, context, jinja_env, seen_oids)
        except TemplateError as error:
            raise self._rejection(content, error) from None

    def _is_template(self, text: str, jinja_env: Environment) -> bool:
        """Return whether a text names the file of a template, or contains a marker of one."""
        markers = (
            jinja_env.variable_start_string,
            jinja_env.block_start_string,
            jinja_env.comment_start_string,
            jinja_env.line_statement_prefix,
            jinja_env.line_comment_prefix,
        )
        return text.endswith(tuple(self.template_ext)) or any(
            marker in text for marker in markers if marker
        )

    def _rejection(self, template: object, error: TemplateError) -> InvalidRequestError:
        arguments = {name: getattr(self, name, None) for name in self.template_fields}
        places = (_place(name, value, template) for name, value in arguments.items())
        place = next(filter(None, places), "An argument")
        fault = one_line(error.message or type(error).__name__).rstrip(".")
        line = getattr(error, "lineno", None)
        where = f" (line {line})" if line else ""
        return InvalidRequestError(
            f"{place} is a template that cannot be rendered: {fault}{where}.",
            consequence=self._if_not_rendered,
            next_step=(
                "Correct the template.\n"
                "For text that is meant as it is, pass literal(…), from airflow.sdk."
            ),
        )


def _place(path: str, value: object, template: object) -> str | None:
    """
    Return where a template is in an argument, None if it is not in it.

    :param path: what the value is called in errors
    """
    items: Iterable[tuple[object, object]] = ()
    if value is template:
        return path
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)

    places = (_place(member(path, key), item, template) for key, item in items)
    return next(filter(None, places), None)
