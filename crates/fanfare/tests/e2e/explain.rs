//! Why a request went as it did: `fanfare explain` for every kind of end.

use serde_json::Value;

use crate::cluster::{Answer, Cluster};
use crate::in_both_arrangements;

in_both_arrangements!(
    explain_answers_for_a_cold_a_warm_and_a_queued_request,
    explain_answers_for_a_refused_a_timed_out_and_a_crashed_request,
    attempts_are_explained_by_their_invocation,
    what_is_not_remembered_is_said_with_how_long_records_are_kept,
);

const SLOW: &str = "import os, time\n\
                    def handler(e, c):\n\
                   \x20   time.sleep(e.get('s', 0))\n\
                   \x20   if e.get('exit'): os._exit(9)\n\
                   \x20   return 1\n";

/// The one request of this answer's id, as JSON and as people read it.
fn explained(cluster: &Cluster, answer: &Answer) -> (Value, String) {
    let id = answer.header("x-request-id").unwrap();
    let json: Value = serde_json::from_str(&cluster.cli_ok(&["explain", id, "-o", "json"])).unwrap();
    assert_eq!(
        (&json["request_id"], json["requests"].as_array().unwrap().len()),
        (&Value::from(id), 1),
        "{json}"
    );
    let text = cluster.cli_ok(&["explain", id]);
    assert!(text.contains(id), "{text}");
    (json["requests"][0].clone(), text)
}

fn sum_ms(request: &Value) -> f64 {
    request["stages"].as_array().unwrap().iter().map(|stage| stage["took_ms"].as_f64().unwrap()).sum()
}

async fn explain_answers_for_a_cold_a_warm_and_a_queued_request(cluster: Cluster) -> Cluster {
    cluster.deploy_python("slow", SLOW, &["--max", "1", "--no-wait"]);
    let cold = cluster.call("slow", "{}").await;
    let (request, text) = explained(&cluster, &cold);
    assert_eq!((&request["outcome"], &request["status"]), (&"answered".into(), &200.into()), "{request}");
    assert_eq!(
        (&request["slot"]["why"], &request["slot"]["revision"]),
        (&"cold".into(), &1.into()),
        "{request}"
    );
    let stages: Vec<_> =
        request["stages"].as_array().unwrap().iter().map(|s| s["stage"].as_str().unwrap()).collect();
    let all = ["decide", "place", "transfer", "create", "start", "ready", "propagate", "execute", "answer"];
    assert_eq!(stages, all, "{request}");
    let total = request["total_ms"].as_f64().unwrap();
    assert!((sum_ms(&request) - total).abs() <= 0.05 * total, "{request}");
    let order = &request["order"];
    assert!(order["reason"].as_str().unwrap().starts_with("demand: "), "{request}");
    assert_eq!((&order["sandboxes"], &order["for_demand"]), (&1.into(), &1.into()), "{request}");
    assert!(!request["decisions"].as_array().unwrap().is_empty(), "{request}");
    assert!(text.contains("a cold start") && text.contains("create") && text.contains("demand: "), "{text}");

    let warm = cluster.call("slow", "{}").await;
    let (request, text) = explained(&cluster, &warm);
    assert_eq!((&request["slot"]["why"], &request["ahead"]), (&"warm".into(), &0.into()), "{request}");
    assert!(text.contains("a slot was free"), "{text}");
    assert!(request["order"].is_object(), "the sandbox's order is remembered: {request}");

    let first = cluster.call("slow", r#"{"s":1}"#);
    let second = async {
        cluster
            .until("the first request is in the sandbox", async || {
                cluster.status_of("slow").await["in_flight"] == 1
            })
            .await;
        cluster.call("slow", "{}").await
    };
    let (_, queued) = tokio::join!(first, second);
    let (request, text) = explained(&cluster, &queued);
    assert_eq!(
        (&request["slot"]["why"], &request["in_flight"]),
        (&"handed-over".into(), &1.into()),
        "{request}"
    );
    assert_eq!(request["stages"][0]["stage"], "queue", "{request}");
    assert!(text.contains("a request before it finished"), "{text}");
    cluster
}

async fn explain_answers_for_a_refused_a_timed_out_and_a_crashed_request(cluster: Cluster) -> Cluster {
    cluster.deploy_python("frail", SLOW, &["--max", "1", "--queue-limit", "1", "--timeout", "2s"]);
    cluster.call("frail", "{}").await;
    let stuck = futures_util::future::join_all((0..4).map(|_| cluster.call("frail", r#"{"s":30}"#))).await;
    let of = |reason: &str| {
        let found = stuck.iter().find(|answer| answer.reason() == Some(reason));
        found
            .unwrap_or_else(|| panic!("{reason}: {:?}", stuck.iter().map(Answer::reason).collect::<Vec<_>>()))
    };
    let (request, text) = explained(&cluster, of("queue-full"));
    assert_eq!((&request["outcome"], &request["status"]), (&"refused".into(), &429.into()), "{request}");
    assert_eq!((&request["reason"], &request["ahead"]), (&"queue-full".into(), &1.into()), "{request}");
    assert!(request["slot"].is_null() && text.contains("--queue-limit"), "{text}");

    let (request, text) = explained(&cluster, of("request-timeout"));
    assert_eq!(
        (&request["outcome"], &request["status"], &request["reason"]),
        (&"timed_out".into(), &504.into(), &"request-timeout".into()),
        "{request}"
    );
    assert!(text.contains("timed out in the function: 504 request-timeout"), "{text}");
    assert!(request["total_ms"].as_f64().unwrap() >= 2_000.0, "{request}");
    assert!(request["slot"]["sandbox"].as_str().unwrap().starts_with('s'), "{request}");
    assert!(text.contains("did not answer within its 2 s"), "{text}");

    let crashed = cluster.call("frail", r#"{"exit":true}"#).await;
    let (request, text) = explained(&cluster, &crashed);
    assert_eq!(
        (&request["outcome"], &request["status"], &request["reason"]),
        (&"crashed".into(), &502.into(), &"sandbox-exited".into()),
        "{request}"
    );
    assert!(request["detail"].as_str().unwrap().contains("status 9"), "{request}");
    assert!(text.contains("exited with status 9"), "{text}");

    let nobody = cluster.call("nobody", "{}").await;
    let (request, _) = explained(&cluster, &nobody);
    assert_eq!(
        (&request["reason"], &request["function"]),
        (&"function-not-found".into(), &Value::Null),
        "{request}"
    );
    cluster
}

async fn attempts_are_explained_by_their_invocation(cluster: Cluster) -> Cluster {
    let twice = "def handler(e, c):\n    first = c.http['headers']['x-fanfare-attempt'] == '1'\n    \
                 return {'statusCode': 503 if first else 200, 'body': c.request_id}\n";
    cluster.deploy_python("twice", twice, &[]);
    let url = format!("{}/async-function/twice", cluster.data_planes[0]);
    for fields in [&[][..], &[("x-request-id", "chosen/by.me")]] {
        let taken = cluster.send("POST", &url, fields, "").await;
        let (id, request_id) =
            (taken.json()["id"].as_str().unwrap().to_owned(), taken.header("x-request-id").unwrap());
        let status = cluster.cli_ok(&["async", "status", &id, "--wait", "30s", "-o", "json"]);
        let status: Value = serde_json::from_str(&status).unwrap();
        assert_eq!(
            (&status["state"], &status["request_id"]),
            (&"succeeded".into(), &request_id.into()),
            "{status}"
        );
        let json: Value = serde_json::from_str(&cluster.cli_ok(&["explain", &id, "-o", "json"])).unwrap();
        let attempts: Vec<_> = json["requests"].as_array().unwrap().iter().collect();
        let told: Vec<_> =
            attempts.iter().map(|request| (&request["request_id"], &request["status"])).collect();
        assert_eq!(told, [(&request_id.into(), &200.into()), (&request_id.into(), &503.into())], "{json}");
        let result =
            cluster.send("GET", &format!("{}/async/{id}/result", cluster.data_planes[0]), &[], "").await;
        assert_eq!(result.text(), request_id, "and the function knows it by that, too");
        let text = cluster.cli_ok(&["explain", request_id]);
        assert!(text.contains("answered: 503") && text.contains("answered: 200"), "{text}");
    }
    cluster
}

async fn what_is_not_remembered_is_said_with_how_long_records_are_kept(cluster: Cluster) -> Cluster {
    let answer = cluster.api("GET", "/v1/requests/never-was", None).await;
    assert_eq!((answer.status, answer.reason()), (404, Some("request-not-found")), "{}", answer.text());
    assert!(answer.text().contains("its last 8192"), "{}", answer.text());
    let output = cluster.cli(&["explain", "never/was ../x"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let output = cluster.cli(&["explain", "never/was/../x"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(4) && said.contains("never/was/../x"), "{said}");
    // What the client or the function said is not part of it.
    cluster.deploy_python("quiet", "def handler(e, c):\n    return 'canary-out'\n", &[]);
    let url = format!("{}/function/quiet/canary-path?canary-query", cluster.data_planes[0]);
    let fields = [("x-canary", "canary-field"), ("x-request-id", "chosen/by.me")];
    let answer = cluster.send("POST", &url, &fields, "canary-in").await;
    let (request, text) = explained(&cluster, &answer);
    assert!(!request.to_string().contains("canary") && !text.contains("canary"), "{request}{text}");
    cluster
}
