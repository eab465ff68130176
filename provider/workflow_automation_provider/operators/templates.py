"""Render the templates in arguments, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import ObjectStoragePath, XComArg

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions._internal.templater import LiteralValue
    from airflow.sdk.definitions._internal.templater import Templater as _Templater
    from jinja2 import Environment

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

    def render_template(
        self,
        content: Any,
        context: Context,
        jinja_env: Environment | None = None,
        seen_oids: set[int] | None = None,
    ) -> Any:
        """Return a value with its templates rendered."""
        if jinja_env is None:
            jinja_env = self.get_template_env()

        is_text = isinstance(content, str | ObjectStoragePath)
        if is_text and not self._is_template(str(content), jinja_env):
            return content

        return super().render_template(content, context, jinja_env, seen_oids)

    def _is_template(self, text: str, jinja_env: Environment) -> bool:
        """Return whether a text names the file of a template, or contains a marker of one."""
        markers = (
            jinja_env.variable_start_string,
            jinja_env.block_start_string,
            jinja_env.comment_start_string,
            jinja_env.line_statement_prefix,
            jinja_env.line_comment_prefix,
        )
        has_marker = any(marker in text for marker in markers if marker)
        return has_marker or text.endswith(tuple(self.template_ext))
