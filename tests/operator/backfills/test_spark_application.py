"""SparkApplications of both kinds: what is in them, and what their states mean."""

from dataclasses import replace

import pytest
from tests.manifest import wrong

from millrace.manifest import StreamsApp, StreamsBackfill
from millrace_operator.backfills.driver_log import last_words, parse_progress
from millrace_operator.backfills.spark_application import (
    SPARK_GROUPS,
    Attempt,
    config_map,
    error_of,
    spark_application,
    state_of,
)
from millrace_operator.model import AppRevision

SPARK_OPERATOR, APACHE = SPARK_GROUPS.values()
REFUSED_BY_KUBEFLOW = {
    "spark.kubernetes.authenticate.driver.serviceAccountName",
    "spark.kubernetes.authenticate.executor.serviceAccountName",
    "spark.kubernetes.container.image",
    "spark.master",
}
"""Settings that kubeflow's admission webhook refuses in `sparkConf`, among those that are needed."""


def attempt(good="everything"):
    """Return an attempt with the examples' application and backfill."""
    app = StreamsApp.model_validate(wrong.good(good)["StreamsApp"])
    backfill = StreamsBackfill.model_validate(wrong.good(good)["StreamsBackfill"])
    revision = AppRevision("shop", app.metadata.name, "0123456789", app.spec)
    return Attempt("history", "b-1", 2, backfill.spec, revision, {"applicationId": "orders-v1"}, "abc")


def test_kubeflows_kind():
    """Cores and memory are in fields of their own, and the settings have none that the webhook refuses."""
    item = spark_application(attempt(), SPARK_OPERATOR)
    spec = item["spec"]
    assert (item["apiVersion"], item["metadata"]["name"]) == (SPARK_OPERATOR, "history-2")
    assert spec["executor"]["instances"] == 8
    assert (spec["executor"]["memory"], spec["executor"]["memoryOverhead"]) == ("8192m", "8192m")
    assert (spec["driver"]["memory"], spec["driver"]["serviceAccount"]) == ("2048m", "spark-operator-spark")
    assert not spec["sparkConf"].keys() & REFUSED_BY_KUBEFLOW
    assert spec["sparkConf"]["spark.local.dir"] == "/scratch"
    assert spec["restartPolicy"] == {"type": "Never"}
    assert "timeToLiveSeconds" not in spec


def test_apaches_kind():
    """Everything but the pods is a setting; its driver stays for its log."""
    spec = spark_application(attempt(), APACHE)["spec"]
    settings = spec["sparkConf"]
    assert settings["spark.executor.instances"] == "8"
    assert settings["spark.kubernetes.container.image"] == "registry.example/orders-backfill:1"
    assert settings["spark.driver.memoryOverhead"] == "2048m"
    assert spec["applicationTolerations"]["resourceRetainPolicy"] == "Always"
    assert spec["applicationTolerations"]["restartConfig"] == {"restartPolicy": "Never"}
    assert (spec["mainClass"], spec["pyFiles"]) == (
        "org.apache.spark.deploy.PythonRunner",
        "local:///etc/millrace/backfill/main.py",
    )


def test_java_has_room_for_rows_of_one_megabyte():
    """They take up two regions each if those are smaller; users may choose otherwise."""
    options = ("spark.driver.defaultJavaOptions", "spark.executor.defaultJavaOptions")
    for api_version in (SPARK_OPERATOR, APACHE):
        settings = spark_application(attempt(), api_version)["spec"]["sparkConf"]
        assert [settings[name] for name in options] == 2 * ["-XX:G1HeapRegionSize=4m"]
        own = replace(attempt(), spec=attempt().spec.model_copy(update={"spark_conf": {options[0]: "-XX:+UseZGC"}}))
        assert spark_application(own, api_version)["spec"]["sparkConf"][options[0]] == "-XX:+UseZGC"


def test_both_kinds_have_the_same_pods_and_arguments():
    """Only the driver gets a token, which it needs to create executors."""
    one, other = (spark_application(attempt(), api_version)["spec"] for api_version in (SPARK_OPERATOR, APACHE))
    assert one["arguments"] == other["driverArgs"]
    assert one["driver"]["template"] == other["driverSpec"]["podTemplateSpec"]
    assert one["executor"]["template"] == other["executorSpec"]["podTemplateSpec"]
    driver, executor = one["driver"]["template"]["spec"], one["executor"]["template"]["spec"]
    assert (driver["automountServiceAccountToken"], executor["automountServiceAccountToken"]) == (True, False)
    assert driver["containers"][0]["securityContext"]["readOnlyRootFilesystem"]


@pytest.mark.parametrize("api_version", [SPARK_OPERATOR, APACHE])
def test_tasks_are_tried_twice_unless_the_user_says_otherwise(api_version):
    """After that there is another attempt, and the application stands still meanwhile."""
    given = attempt()
    assert spark_application(given, api_version)["spec"]["sparkConf"]["spark.task.maxFailures"] == "2"
    conf = {**given.spec.spark_conf, "spark.task.maxFailures": "8"}
    given = replace(given, spec=given.spec.model_copy(update={"spark_conf": conf}))
    assert spark_application(given, api_version)["spec"]["sparkConf"]["spark.task.maxFailures"] == "8"


def test_executors_have_the_applications_service_account():
    """It is a field or a setting as well: Spark reads no `serviceAccountName` of a template, and would give them the driver's."""
    given = attempt()
    account = given.app.spec.service_account_name
    assert account not in {None, given.spec.driver.service_account_name}
    one, other = (spark_application(given, api_version)["spec"] for api_version in (SPARK_OPERATOR, APACHE))
    assert one["executor"]["serviceAccount"] == account
    assert other["sparkConf"]["spark.kubernetes.authenticate.executor.serviceAccountName"] == account
    bare = spark_application(attempt("minimal"), SPARK_OPERATOR)["spec"]["executor"]
    assert bare["serviceAccount"] == bare["template"]["spec"]["serviceAccountName"] == "smallest"


def test_metrics_and_traces_go_where_those_of_the_application_go():
    """Both kinds of pods have the collector and the sampler of the manifest, and its Secret is mounted."""
    spec = spark_application(attempt(), SPARK_OPERATOR)["spec"]
    for role in ("driver", "executor"):
        pod = spec[role]["template"]["spec"]
        variables = {item["name"]: item.get("value") for item in pod["containers"][0]["env"]}
        assert variables["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector.observability:4318"
        assert variables["OTEL_TRACES_SAMPLER"] == "traceidratio"
        assert variables["OTEL_SERVICE_NAME"] == "orders-v1"
        assert len(variables) == len(pod["containers"][0]["env"])


def test_arguments_are_those_of_the_command():
    """Every field of the spec that the job needs is an option or in the source's file."""
    arguments = attempt()
    assert config_map(arguments)["data"]["source.json"].startswith('{"files": [{"columns": {"headers"')
    shown = " ".join(spark_application(arguments, APACHE)["spec"]["driverArgs"])
    for part in (
        "--outputs last",
        "--transaction-records 50000000",
        "--sink parquet://s3a://history/tables",
        "--plan-hash abc",
        f"--attempt-of {arguments.uid}",
        "--dry-run",
        "--allow-missing-history",
        "--allow-side-effects",
        "--ignore-wall-clock",
    ):
        assert part in shown


@pytest.mark.parametrize(
    ("state", "means"),
    [
        (None, "New"),
        ("", "New"),
        ("SUBMITTED", "New"),
        ("RUNNING", "Running"),
        ("SUCCEEDING", "Running"),
        ("FAILING", "Running"),
        ("UNKNOWN", "Running"),
        ("COMPLETED", "Succeeded"),
        ("FAILED", "Failed"),
        ("SUBMISSION_FAILED", "Failed"),
    ],
)
def test_kubeflows_states(state, means):
    """All others than the three at the end pass."""
    status = {} if state is None else {"applicationState": {"state": state}}
    assert state_of({"apiVersion": SPARK_OPERATOR, "status": status}) == means


@pytest.mark.parametrize(
    ("states", "means"),
    [
        ([], "New"),
        (["Submitted"], "New"),
        (["Submitted", "DriverRequested"], "Running"),
        (["Submitted", "RunningHealthy"], "Running"),
        (["Submitted", "RunningHealthy", "Succeeded"], "Succeeded"),
        (["Submitted", "RunningHealthy", "Succeeded", "ResourceReleased"], "Succeeded"),
        (["Submitted", "Succeeded", "TerminatedWithoutReleaseResources"], "Succeeded"),
        (["Submitted", "RunningHealthy", "Failed"], "Failed"),
        (["Submitted", "Failed", "ResourceReleased"], "Failed"),
        (["Submitted", "DriverStartTimedOut"], "Failed"),
        (["Submitted", "SchedulingFailure"], "Failed"),
    ],
)
def test_apaches_states(states, means):
    """How it ended is in the history: what follows success and failure is the same state."""
    history = {str(number): {"currentStateSummary": state} for number, state in enumerate(states)}
    status = {"stateTransitionHistory": history}
    if states:
        status["currentState"] = {"currentStateSummary": states[-1]}
    assert state_of({"apiVersion": APACHE, "status": status}) == means


def test_reason_of_a_failed_submission_is_short():
    """Kubeflow's operator gives everything that `spark-submit` has printed; the status has room for the reason only."""
    frames = (
        "\tat io.fabric8.kubernetes.client.dsl.internal.OperationSupport.handleResponse(OperationSupport.java:524)\n"
        * 1000
    )
    said = f'WARN Utils: hostname\nException in thread "main" Failure: pods is forbidden\n{frames}Caused by: Failure\n{frames}'
    application = {
        "apiVersion": SPARK_GROUPS["SparkOperator"],
        "status": {"applicationState": {"state": "FAILED", "errorMessage": said}},
    }
    assert error_of(application) == 'Exception in thread "main" Failure: pods is forbidden\nCaused by: Failure'
    application["status"]["applicationState"]["errorMessage"] = "driver pod not found"
    assert error_of(application) == "driver pod not found"
    application["status"]["applicationState"]["errorMessage"] = "x" * 100_000
    assert len(error_of(application)) < 2_000


def test_publishing_is_remembered_from_an_earlier_report():
    """A job that fails after it began to publish says so in two reports."""
    text = '{"backfill": {"state": "Publishing"}}\n{"backfill": {"state": "Failed", "message": "no broker"}}\n'
    progress = parse_progress(text)
    assert (progress.state, progress.message, progress.has_published) == ("Failed", "no broker", True)
    assert not parse_progress('{"backfill": {"state": "Computing"}}').has_published
    assert parse_progress('{"backfill": {"state": "Failed", "hasPublished": true}}').has_published


@pytest.mark.parametrize("line", ['{"backfill": {"state": "Dancing"}}', '{"backfill": 1}', '{"backfill": {"sta', ""])
def test_unreadable_reports_are_skipped(line):
    """A line may be cut off, or come from a newer version."""
    assert parse_progress(line) is None
    assert parse_progress(f'{{"backfill": {{"state": "Computing"}}}}\n{line}').state == "Computing"


def test_last_words_are_the_end_of_the_log_without_reports():
    """They are what the user has to read."""
    assert last_words('one\n{"backfill": {"state": "Failed"}}\n\ntwo\n') == "one\ntwo"
