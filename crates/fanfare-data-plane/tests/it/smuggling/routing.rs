//! Whom a request is for, and what a client may say of its connection.

use super::{Are, Refused, Stage, case, hold};

const LINE: &str = "GET /x HTTP/1.1";

#[tokio::test]
async fn a_request_has_one_host() {
    let cases = [
        case("two", "GET /function/hello/x HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", Refused(400)),
        case("the same twice", "GET /function/hello/x HTTP/1.1\r\nhost: a\r\nhost: a\r\n\r\n", Refused(400)),
        case("none in HTTP/1.1", "GET /function/hello/x HTTP/1.1\r\nx: y\r\n\r\n", Refused(400)),
        case("a list", "GET /function/hello/x HTTP/1.1\r\nhost: a b\r\n\r\n", Refused(400)),
        case("with a path", "GET /function/hello/x HTTP/1.1\r\nhost: a/b\r\n\r\n", Refused(400)),
        case("with a query", "GET /function/hello/x HTTP/1.1\r\nhost: a?b\r\n\r\n", Refused(400)),
        case("with a fragment", "GET /function/hello/x HTTP/1.1\r\nhost: a#b\r\n\r\n", Refused(400)),
        case("with a backslash", "GET /function/hello/x HTTP/1.1\r\nhost: a\\b\r\n\r\n", Refused(400)),
        case("with a user", "GET /function/hello/x HTTP/1.1\r\nhost: u@a\r\n\r\n", Refused(400)),
        case("beyond ASCII", "GET /function/hello/x HTTP/1.1\r\nhost: \u{e9}\r\n\r\n", Refused(400)),
        case("a user in the target", "GET http://u@hello/x HTTP/1.1\r\nhost: hello\r\n\r\n", Refused(400)),
        case(
            "two ports in the target",
            "GET http://hello:80:90/x HTTP/1.1\r\nhost: hello\r\n\r\n",
            Refused(400),
        ),
        case(
            "a space in the target's host",
            "GET http://hel lo/x HTTP/1.1\r\nhost: hello\r\n\r\n",
            Refused(400),
        ),
        case("an authority for a target", "GET hello:80 HTTP/1.1\r\nhost: hello\r\n\r\n", Refused(400)),
        case("an asterisk for a target", "GET * HTTP/1.1\r\nhost: hello\r\n\r\n", Refused(400)),
        case("CONNECT", "CONNECT hello:80 HTTP/1.1\r\nhost: hello:80\r\n\r\n", Refused(400)),
        case("CONNECT with a path", "CONNECT /x HTTP/1.1\r\nhost: hello\r\n\r\n", Refused(400)),
        case(
            "OPTIONS of the whole",
            "OPTIONS * HTTP/1.1\r\nhost: hello\r\n\r\n",
            Are(&[("OPTIONS * HTTP/1.1", "")]),
        ),
        case("an address", "GET /function/hello/x HTTP/1.1\r\nhost: [::1]:80\r\n\r\n", Are(&[(LINE, "")])),
        case("of nothing", "GET /function/hello/x HTTP/1.1\r\nhost:\r\n\r\n", Are(&[(LINE, "")])),
        case(
            "the target's goes before the field's",
            "GET http://hello/x HTTP/1.1\r\nhost: other\r\n\r\n",
            Are(&[(LINE, "")]),
        ),
    ];
    hold(&cases).await;
}

#[tokio::test]
async fn the_function_sees_the_host_that_the_request_was_routed_by() {
    let stage = Stage::new().await;
    stage
        .exchange("absolute", b"GET http://hello/x HTTP/1.1\r\nhost: evil\r\nconnection: close\r\n\r\n")
        .await;
    let heard = stage.take("absolute");
    assert_eq!(heard[0].all("host"), ["hello"]);
    assert!(heard[0].all("forwarded")[0].ends_with(";host=hello"), "{heard:?}");
    assert_eq!(heard[0].all("x-forwarded-host"), ["hello"]);
}

/// `Connection` takes away what a client has said, and nothing that the platform says.
#[tokio::test]
async fn connection_takes_nothing_away_that_the_platform_says() {
    let stage = Stage::new().await;
    let listed = "x-forwarded-for, x-forwarded-proto, x-forwarded-host, forwarded, host, content-length, \
                  transfer-encoding, x-request-id, x-fanfare-deadline-ms, x-mine, close";
    let said = format!(
        "POST /function/hello/x HTTP/1.1\r\nhost: a\r\nconnection: {listed}\r\nx-mine: 1\r\nx-forwarded-for: 10.0.0.1\r\n\
         x_forwarded_for: 10.0.0.2\r\nx-request_id: evil\r\nkeep-alive: timeout=9\r\nproxy-connection: x\r\n\
         x-request-id: mine-1\r\ncontent-length: 2\r\n\r\nab"
    );
    let answered = stage.exchange("connection", said.as_bytes()).await;
    assert_eq!(answered.len(), 1, "{answered:?}");
    let heard = stage.take("connection");
    let seen = &heard[0];
    assert_eq!((seen.all("host"), seen.body.as_slice()), (vec!["a"], b"ab".as_slice()));
    assert_eq!((seen.all("content-length"), seen.all("x-request-id")), (vec!["2"], vec!["mine-1"]));
    assert_eq!(seen.all("x-forwarded-for"), ["127.0.0.1"], "what the client said of it, it took back");
    assert_eq!((seen.all("x-forwarded-proto"), seen.all("x-forwarded-host")), (vec!["http"], vec!["a"]));
    assert_eq!(seen.all("forwarded"), ["for=127.0.0.1;proto=http;host=a"]);
    assert_eq!(seen.all("x-fanfare-deadline-ms").len(), 1);
    for gone in ["x-mine", "connection", "keep-alive", "proxy-connection", "x_forwarded_for", "x-request_id"]
    {
        assert_eq!(seen.all(gone), [""; 0], "{gone}");
    }
}

/// What is asked for is HTTP/1.1 all the same, and what follows it another request.
#[tokio::test]
async fn upgrades_that_are_not_granted_open_no_tunnel() {
    let settings = "http2-settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n";
    let cases = [
        ("h2c", "connection: upgrade, http2-settings\r\nupgrade: h2c\r\n", false),
        ("h2c in capitals", "connection: Upgrade\r\nupgrade: H2C\r\n", false),
        ("h2c among others", "connection: upgrade\r\nupgrade: websocket, h2c\r\n", false),
        ("h2c in a second field", "connection: upgrade\r\nupgrade: websocket\r\nupgrade: h2c\r\n", false),
        ("nothing that the connection lists", "upgrade: websocket\r\n", false),
        ("a websocket that is not granted", "connection: upgrade\r\nupgrade: websocket\r\n", true),
    ];
    for (name, fields, passes) in cases {
        let stage = Stage::new().await;
        let said = format!(
            "GET /function/hello/x HTTP/1.1\r\nhost: a\r\n{fields}{settings}\r\n\
             GET /function/hello/next HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
        );
        let answered = stage.exchange(name, said.as_bytes()).await;
        let heard = stage.take(name);
        assert_eq!(super::lines(&heard), [(LINE, ""), ("GET /next HTTP/1.1", "")], "{name}: {answered:?}");
        assert_eq!(!heard[0].all("upgrade").is_empty(), passes, "{name}");
        assert_eq!(heard[0].all("http2-settings"), [""; 0], "{name}");
        stage.is_sound(name).await;
    }
}

#[tokio::test]
async fn expectations_are_one_or_none() {
    let cases = [
        case(
            "a body that does not wait",
            "POST /function/hello/x HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\nab",
            Are(&[("POST /x HTTP/1.1", "ab")]),
        ),
        case(
            "another one",
            "POST /function/hello/x HTTP/1.1\r\nhost: a\r\nexpect: 200-ok\r\ncontent-length: 2\r\n\r\nab",
            Are(&[("POST /x HTTP/1.1", "ab")]),
        ),
        case(
            "without a body",
            "GET /function/hello/x HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\n\r\n",
            Are(&[(LINE, "")]),
        ),
        case(
            "in HTTP/1.0",
            "POST /function/hello/x HTTP/1.0\r\nhost: a\r\nconnection: keep-alive\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\nab",
            Are(&[("POST /x HTTP/1.1", "ab")]),
        ),
    ];
    hold(&cases).await;
}
