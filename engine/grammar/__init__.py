"""Answers of a set form: JSON Schemas, regular expressions and Lark grammars as token masks."""
