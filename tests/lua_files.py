"""The Lua files of the store's functions as they are written, by name: the engine's, and those of the extensions."""

from __future__ import annotations

from penstock.broker.store.library import engine_files, lua_extensions

ENGINE = engine_files()
OF_EXTENSIONS = {file: text for extension in lua_extensions() for file, text in extension.texts.items()}
LUA = ENGINE | OF_EXTENSIONS
