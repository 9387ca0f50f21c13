"""What holds off attacks by archives, their handlers and those who register them."""

from __future__ import annotations

from tests.cures.cure import Cure

ARCHIVES: tuple[Cure, ...] = (
    Cure(
        "A7",
        "extensions/torchserve/archives/members.py",
        '    if ".." in parts:\n',
        "    if False:\n",
        ("tests/extensions/torchserve/archives/test_opening.py::test_an_unsafe_path_refuses_the_whole_archive",),
    ),
    Cure(
        "A8",
        "extensions/torchserve/archives/members.py",
        "        if member.kind not in (MemberKind.FILE, MemberKind.FOLDER):\n",
        "        if False:\n",
        ("tests/extensions/torchserve/archives/test_opening.py::test_a_tar_with_a_link_or_a_device_is_refused",),
    ),
    Cure(
        "A9",
        "extensions/torchserve/archives/members.py",
        "        if written_bytes > self.allowed_bytes:\n",
        "        if False:\n",
        ("tests/extensions/torchserve/archives/test_opening.py::test_bombs_are_refused_by_what_comes_out_of_them",),
    ),
    Cure(
        "A9",
        "extensions/torchserve/archives/model_config.py",
        "            if self._members > _MAX_MEMBERS:\n",
        "            if False:\n",
        (
            "tests/extensions/torchserve/archives/test_model_config.py::test_a_file_that_would_become_billions_of_values_is_refused_before_it_does",
        ),
    ),
    Cure(
        "A10",
        "extensions/torchserve/archives/members.py",
        "        if known != path:\n",
        "        if False:\n",
        ("tests/extensions/torchserve/archives/test_opening.py::test_an_unsafe_path_refuses_the_whole_archive",),
    ),
    Cure(
        "A11",
        "extensions/torchserve/archives/opening.py",
        "        if _state(file) != state:\n",
        "        if False:\n",
        (
            "tests/extensions/torchserve/archives/test_opening.py::test_an_archive_that_changes_while_it_is_unpacked_leaves_nothing_under_the_name_of_what_it_was",
        ),
    ),
    Cure(
        "A58",
        "extensions/torchserve/gateway/answer.py",
        "        if said.status in BODILESS:\n            await",
        "        if False:\n            await",
        (
            "tests/extensions/torchserve/acceptance/test_torchserve_routes.py::test_no_body_stands_behind_a_status_that_has_none_where_it_would_pass_for_the_next_response",
        ),
    ),
    Cure(
        "A59",
        "core/access.py",
        "CREDENTIAL_HEADERS | HANDED_ON_CREDENTIALS | _OF_CONNECTION",
        "CREDENTIAL_HEADERS | _OF_CONNECTION",
        ("tests/unit/core/test_access.py::test_a_star_stands_for_no_header_in_which_a_gateway_hands_on_who_a_caller_is",),
    ),
    Cure(
        "A60",
        "extensions/torchserve/urlencoded.py",
        "_BLOCK_BYTES = 1 << 16",
        "_BLOCK_BYTES = 1 << 40",
        (
            "tests/extensions/torchserve/test_urlencoded.py::test_a_form_of_escapes_alone_takes_little_more_memory_than_it_has_bytes",
        ),
    ),
    Cure(
        "A56",
        "extensions/torchserve/management/model_store.py",
        "    _contents(part / name, name)\n    digest",
        "    digest",
        (
            "tests/extensions/torchserve/acceptance/test_torchserve_registering.py::test_a_bad_archive_is_refused_and_leaves_nothing",
        ),
    ),
    Cure(
        "A56",
        "extensions/torchserve/management/download.py",
        "any(_spells(pattern, checked) for pattern in matching)",
        "True",
        (
            "tests/extensions/torchserve/management/test_download.py::test_only_a_host_that_a_pattern_spells_may_have_any_address",
            "tests/extensions/torchserve/acceptance/test_torchserve_registering.py::test_a_host_that_no_pattern_spells_is_reached_at_public_addresses_alone",
        ),
    ),
    Cure(
        "A57",
        "extensions/torchserve/gateway/tokens.py",
        "if self._path.stat().st_mode & 0o077:",
        "if False:",
        ("tests/extensions/torchserve/gateway/test_tokens.py::test_a_file_that_others_may_read_is_a_fault_of_the_settings",),
    ),
)
