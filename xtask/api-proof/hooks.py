"""What schemathesis must know of this API beyond its description.

Every check is on. A refusal of a request that the description allows is a failure unless its reason is one that no
schema can express: fields that disagree, an amount in text that is out of bounds, code that was not uploaded, bytes
that are not their digest's, secrets that were not set.
"""

import hashlib
import json

import schemathesis
from schemathesis.core.failures import AcceptedNegativeData
from schemathesis.openapi.checks import RejectedPositiveData

BEYOND_SCHEMAS = {"fields-disagree", "code-not-found", "code-mismatch", "secret-unknown"}
# What no schema can say of a schedule: which expressions and zones there are, and which instants are to come.
TIMES = {"cron", "zone", "at"}
uploaded = []
functions = []


@schemathesis.hook
def before_call(context, case, kwargs):
    """Makes agree what a request says twice, and ends what would go on for ever."""
    if (case.query or {}).get("follow") in (True, "true"):
        case.query["follow"] = "false"
    if case.meta is None or not case.meta.generation.mode.is_positive:
        return
    if case.path.startswith("/v1/functions") and isinstance(case.body, dict):
        with_uploaded_code(case.body)
        if case.method == "PUT" and isinstance(case.body.get("name"), str):
            case.path_parameters["name"] = case.body["name"]
    if case.path == "/v1/schedules/{name}" and isinstance(case.body, dict):
        with_a_time(case.body)
        if isinstance(case.body.get("name"), str):
            case.path_parameters["name"] = case.body["name"]
    if case.path == "/v1/webhooks/{name}" and isinstance(case.body, dict):
        if functions:
            case.body["function"] = functions[-1]
        if isinstance(case.body.get("name"), str):
            case.path_parameters["name"] = case.body["name"]
    if case.path == "/v1/blobs/{digest}" and case.method == "PUT":
        content = getattr(case.body, "data", case.body)
        if isinstance(content, bytes):
            case.path_parameters["digest"] = hashlib.sha256(content).hexdigest()
    elif case.path == "/v1/blobs/{digest}" and uploaded:
        case.path_parameters["digest"] = uploaded[0]


@schemathesis.hook
def after_call(context, case, response):
    """Remembers code and functions that are there."""
    if case.method in ("POST", "PUT") and case.path in ("/v1/functions", "/v1/functions/{name}"):
        if response.status_code in (200, 201):
            functions.append(response.json()["name"])
    if case.method == "PUT" and case.path == "/v1/blobs/{digest}" and response.status_code == 201:
        uploaded.append(response.json()["digest"])


def with_uploaded_code(function):
    """Gives a function code that is there, or none where it has none."""
    handler = function.get("handler")
    if isinstance(handler, dict) and handler.get("kind") == "fake":
        function.pop("code", None)
    elif uploaded:
        function["code"] = uploaded[-1]


def with_a_time(schedule):
    """Gives a schedule a function that is there, if there is one, and a time that comes."""
    if functions:
        schedule["function"] = functions[-1]
    for field in TIMES:
        schedule.pop(field, None)
    schedule["cron"] = "30 2 * * *"


@schemathesis.hook
def filter_failure(context, failure, case, response):
    """Whether a failure is one."""
    beyond = isinstance(failure, (RejectedPositiveData, AcceptedNegativeData))
    if beyond and response.status_code == 413:
        # Longer than any request may be, and so refused before it is looked at.
        return False
    if response.status_code == 503 and case.path.endswith("/prepare"):
        # Emulated nodes run only what is fake, and have no more room than this machine.
        return response.json()["reason"] not in ("runtime-missing", "no-capacity")
    if not isinstance(failure, RejectedPositiveData) or response.status_code != 422:
        return True
    problem = json.loads(response.content or b"{}")
    if problem.get("reason") in BEYOND_SCHEMAS:
        return False
    field = problem.get("field", "")
    return field not in TIMES | {"since"} and not (is_quantity(field) and isinstance(given(case.body, field), str))


def given(body, field):
    """The value at a path such as `limits.memory_limit`."""
    for name in field.split("."):
        body = body.get(name) if isinstance(body, dict) else None
    return body


def is_quantity(field):
    """Whether a field takes amounts as text."""
    table, _, name = field.rpartition(".")
    amounts = {
        "": {"max_age", "tolerance"},
        "limits": {"memory_request", "memory_limit", "cpu_request", "cpu_limit", "tmp"},
        "timeouts": {"start", "request", "idle"},
        "scaling": {"scale_down_delay", "stable_window", "scale_to_zero_grace", "tick", "stabilization_window"},
    }
    return name in amounts.get(table, ())


@schemathesis.deserializer("application/x-ndjson")
def lines(context, response):
    """A list of the documents of a log."""
    return [json.loads(line) for line in response.content.decode().splitlines()]
