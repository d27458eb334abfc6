"""The public names and where each is defined; `__init__.py` loads one when it is first used."""

# models
from .models.named import load_model as load_model
from .models.bridge import bridge_from as bridge_from, intervening as intervening
from .models.bridge import logits_of as logits_of, residuals as residuals

# data
from .data.facts import Fact as Fact, load_facts as load_facts
from .data.tofu import forget_set as forget_set
from .data.spans import Batch as Batch, Encoded as Encoded
from .data.spans import encode as encode, make_batch as make_batch, prompt as prompt

# activations
from .activations.layers import ActivationStore as ActivationStore
from .activations.opening import open_activations as open_activations

# doors
from .doors.prompt_cache import cache_prompts as cache_prompts
from .doors.prompt_cache import export_safetensors as export_safetensors

# interventions
from .patching.interventions import replace_at as replace_at
from .steer.interventions import add as add, clamp as clamp, project_out as project_out

# patched scores and text
from .patching.oracle import baseline as baseline, layer_deltas as layer_deltas, patched as patched
from .doors.generation import patched_generation as patched_generation
from .steer.generate import steer as steer

# scores
from .scores.depth import depth_score as depth_score, span_logprob as span_logprob

# what the commands do
from .association.calls import know as know
from .attacks.calls import effort as effort, worst as worst
from .doors.python import evaluate as evaluate
from .doors.python import audit as audit, patch as patch
from .doors.cache import cache as cache
from .doors.streams import lens as lens
from .doors.streams import last_prompt as last_prompt, preflight as preflight
from .screen.show import show as show
from .doors.trainer import AuditCallback as AuditCallback
from .report.render import write_report as write_report
from .doors.verify import verify as verify
from .verdict.collect import verdicts as verdicts
from .doors.gate import gate as gate, read_policy as read_policy
from .project import read_project as read_project

# a patching run, step by step
from .patching.settings import PatchSettings as PatchSettings
from .patching.prepare import prepare as prepare
from .patching.scoring import score_all as score_all
from .models.registry import load_registry as load_registry

# results as data frames, and pictures of them
from .doors import frames as frames, plot as plot

__version__: str
