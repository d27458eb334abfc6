"""The modules that commands call, each imported when it is first used."""

import ast
import functools
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from lensaudit.cli.terminal import during

if TYPE_CHECKING:
    from lensaudit import checkup as checkup
    from lensaudit import plugins as plugins
    from lensaudit.activations import archive as activations_archive
    from lensaudit.activations import inventory as activations_inventory
    from lensaudit.activations import lookup as activations_lookup
    from lensaudit.activations import naming as activations_naming
    from lensaudit.activations import upkeep as activations_upkeep
    from lensaudit.ask import acting as ask_acting
    from lensaudit.association import calls as association_calls
    from lensaudit.association import canaries as association_canaries
    from lensaudit.association import demo as association_demo
    from lensaudit.association import run as association_run
    from lensaudit.attacks import calls as attacks_calls
    from lensaudit.attacks import relearn as attacks_relearn
    from lensaudit.attacks import result as attacks_result
    from lensaudit.attacks import rounding as attacks_rounding
    from lensaudit.attacks import sampling as attacks_sampling
    from lensaudit.attacks import worst as attacks_worst
    from lensaudit.attacks.effort import runs as effort_runs
    from lensaudit.attacks.rtt import execution as rtt_execution
    from lensaudit.attacks.rtt import fork as rtt_fork
    from lensaudit.attacks.rtt import summary as rtt_summary
    from lensaudit.auditing import audit as auditing_audit
    from lensaudit.auditing import calls as auditing_calls
    from lensaudit.auditing import result as auditing_result
    from lensaudit.data import facts as data_facts
    from lensaudit.data import relations as data_relations
    from lensaudit.doors import asked_rows as doors_asked_rows
    from lensaudit.doors import cache as doors_cache
    from lensaudit.doors import cache_fill as doors_cache_fill
    from lensaudit.doors import data as doors_data
    from lensaudit.doors import discover as doors_discover
    from lensaudit.doors import figures as doors_figures
    from lensaudit.doors import gate as doors_gate
    from lensaudit.doors import gate_formats as doors_gate_formats
    from lensaudit.doors import harness as doors_harness
    from lensaudit.doors import lmeval as doors_lmeval
    from lensaudit.doors import logs as doors_logs
    from lensaudit.doors import open_unlearning as doors_open_unlearning
    from lensaudit.doors import outside as doors_outside
    from lensaudit.doors import spans as doors_spans
    from lensaudit.doors import steering as doors_steering
    from lensaudit.doors import verify as doors_verify
    from lensaudit.doors.export import files as export_files
    from lensaudit.evaluation import annotation as evaluation_annotation
    from lensaudit.gym import make as gym_make
    from lensaudit.gym import scoring as gym_scoring
    from lensaudit.gym import table as gym_table
    from lensaudit.judge import batches as judge_batches
    from lensaudit.judge import calibrate as judge_calibrate
    from lensaudit.judge import client as judge_client
    from lensaudit.judge import jobs as judge_jobs
    from lensaudit.meta import check as meta_check
    from lensaudit.meta import documents as meta_documents
    from lensaudit.meta import methods as meta_methods
    from lensaudit.meta import runs as meta_runs
    from lensaudit.models import at_hand as models_at_hand
    from lensaudit.models import family as models_family
    from lensaudit.models import fetch as models_fetch
    from lensaudit.models import hashing as models_hashing
    from lensaudit.models import registry as models_registry
    from lensaudit.plans import audit as plans_audit
    from lensaudit.plans import depth as plans_depth
    from lensaudit.plans import said as plans_said
    from lensaudit.report import render as report_render
    from lensaudit.results import ledger_check as results_ledger_check
    from lensaudit.results import manifest as results_manifest
    from lensaudit.results import reading as results_reading
    from lensaudit.results import renewal as results_renewal
    from lensaudit.results import roles as results_roles
    from lensaudit.results import run_log as results_run_log
    from lensaudit.screen import attacks as screen_attacks
    from lensaudit.screen import depth as screen_depth
    from lensaudit.screen import evaluation as screen_evaluation
    from lensaudit.screen import explain as screen_explain
    from lensaudit.screen import listings as screen_listings
    from lensaudit.screen import meta as screen_meta
    from lensaudit.screen import steer as screen_steer
    from lensaudit.screen import tables as screen_tables
    from lensaudit.steer import audit as steer_audit
    from lensaudit.steer import crossing as steer_crossing
    from lensaudit.steer import evaluate as steer_evaluate
    from lensaudit.steer import extract as steer_extract
    from lensaudit.steer import profile as steer_profile
    from lensaudit.sweep import collect as sweep_collect
    from lensaudit.sweep import engines as sweep_engines
    from lensaudit.sweep import plan as sweep_plan
    from lensaudit.sweep import planning as sweep_planning
    from lensaudit.sweep import run as sweep_run
    from lensaudit.sweep import settings as sweep_settings
    from lensaudit.sweep import unit as sweep_unit
    from lensaudit.sweep import upkeep as sweep_upkeep
    from lensaudit.sweep import watch as sweep_watch
    from lensaudit.sweep import weights as sweep_weights
    from lensaudit.training import job as unlearn_job
    from lensaudit.training import record as training_record
    from lensaudit.verdict import collect as verdict_collect


@functools.cache
def modules() -> dict[str, str]:
    """Name -> module, of the imports above, which only type checkers run."""
    blocks = ast.parse(Path(__file__).read_text(encoding="utf-8")).body
    imports = next(block.body for block in blocks if isinstance(block, ast.If))
    return {
        str(one.asname or one.name): f"{node.module}.{one.name}"
        for node in imports
        if isinstance(node, ast.ImportFrom)
        for one in node.names
    }


if not TYPE_CHECKING:

    def __getattr__(name: str) -> ModuleType:
        """Import the module of that name, and say so on a terminal."""
        if name not in modules():
            raise AttributeError(name)
        with during("loading libraries"):
            module = globals()[name] = import_module(modules()[name])
        return module
