//! Where a line ends, and what may be in it.

use super::{Are, End, Refused, case, hold};

const LINE: &str = "GET /x HTTP/1.1";

macro_rules! get {
    ($rest:expr) => {
        concat!("GET /function/hello/x HTTP/1.1\r\nhost: a\r\n", $rest, "\r\n")
    };
}

#[tokio::test]
async fn lines_end_once() {
    let cases = [
        case("obs-fold with a space", get!("x: y\r\n z\r\n"), Refused(400)),
        case("obs-fold with a tab", get!("x: y\r\n\tz\r\n"), Refused(400)),
        case("obs-fold of the host", "GET /function/hello/x HTTP/1.1\r\nhost:\r\n a\r\n\r\n", Refused(400)),
        case("a fold of nothing", "GET /function/hello/x HTTP/1.1\r\n \r\nhost: a\r\n\r\n", Refused(400)),
        case("a bare carriage return in a value", get!("x: y\rz: 1\r\n"), Refused(400)),
        case("a bare carriage return in a name", get!("x\ry: z\r\n"), Refused(400)),
        case(
            "a bare carriage return for a line's end",
            "GET /function/hello/x HTTP/1.1\rhost: a\r\n\r\n",
            Refused(400),
        ),
        case("two carriage returns", get!("x: y\r\r\n"), Refused(400)),
        case("a NUL in a value", get!("x: y\0z\r\n"), Refused(400)),
        case("a NUL in a name", get!("x\0y: z\r\n"), Refused(400)),
        case("a NUL in the host", "GET /function/hello/x HTTP/1.1\r\nhost: a\0b\r\n\r\n", Refused(400)),
        case("a control character in a value", get!("x: y\x01\r\n"), Refused(400)),
        case("DEL in a value", get!("x: y\x7f\r\n"), Refused(400)),
        case("a space before the colon", get!("x : y\r\n"), Refused(400)),
        case("a tab before the colon", get!("x\t: y\r\n"), Refused(400)),
        case("a space in a name", get!("x y: z\r\n"), Refused(400)),
        case("no colon", get!("x\r\n"), Refused(400)),
        case("no name", get!(": y\r\n"), Refused(400)),
        case("a name with a quote", get!("x\"y: z\r\n"), Refused(400)),
        case("a name beyond ASCII", get!("x\u{e9}: z\r\n"), Refused(400)),
        // RFC 9112, section 2.2, lets them be; what is passed on has none.
        case("bare line feeds", "GET /function/hello/x HTTP/1.1\nhost: a\nx: y\n\n", Are(&[(LINE, "")])),
        case(
            "empty lines before the request",
            "\r\n\r\nGET /function/hello/x HTTP/1.1\r\nhost: a\r\n\r\n",
            Are(&[(LINE, "")]),
        ),
        case("spaces and tabs around a value", get!("x:\t  y \t\r\n"), Are(&[(LINE, "")])),
        case("a value of nothing", get!("x:\r\n"), Are(&[(LINE, "")])),
    ];
    hold(&cases).await;
}

#[tokio::test]
async fn request_lines_have_three_words() {
    let cases = [
        case("two spaces", "GET  /function/hello/x HTTP/1.1\r\nhost: a\r\n\r\n", Refused(400)),
        case("a tab", "GET\t/function/hello/x HTTP/1.1\r\nhost: a\r\n\r\n", Refused(400)),
        case("a space in the target", "GET /function/hello/x y HTTP/1.1\r\nhost: a\r\n\r\n", Refused(400)),
        case("a space after it", "GET /function/hello/x HTTP/1.1 \r\nhost: a\r\n\r\n", Refused(400)),
        case("a space before it", " GET /function/hello/x HTTP/1.1\r\nhost: a\r\n\r\n", Refused(400)),
        case("a NUL in the target", "GET /function/hello/x\0 HTTP/1.1\r\nhost: a\r\n\r\n", Refused(400)),
        case("DEL in the target", "GET /function/hello/x\x7f HTTP/1.1\r\nhost: a\r\n\r\n", Refused(400)),
        case("HTTP/1.2", "GET /function/hello/x HTTP/1.2\r\nhost: a\r\n\r\n", Refused(400)),
        case("HTTP/2.0", "GET /function/hello/x HTTP/2.0\r\nhost: a\r\n\r\n", Refused(400)),
        case("HTTP/0.9", "GET /function/hello/x\r\n\r\n", Refused(400)),
        case("http in small letters", "GET /function/hello/x http/1.1\r\nhost: a\r\n\r\n", Refused(400)),
        case("a method that is no token", "G(T /function/hello/x HTTP/1.1\r\nhost: a\r\n\r\n", Refused(400)),
        case("no method", " /function/hello/x HTTP/1.1\r\nhost: a\r\n\r\n", Refused(400)),
        case("no target", "GET HTTP/1.1\r\nhost: a\r\n\r\n", Refused(400)),
        case(
            "any token is a method",
            "get /function/hello/x HTTP/1.1\r\nhost: a\r\n\r\n",
            Are(&[("get /x HTTP/1.1", "")]),
        ),
        case(
            "no request after a good one",
            "GET /function/hello/x HTTP/1.1\r\nhost: a\r\n\r\nnonsense\r\n\r\n",
            End(&[(LINE, "")]),
        ),
        case(
            "the preface of HTTP/2 after a good one",
            "GET /function/hello/x HTTP/1.1\r\nhost: a\r\n\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            End(&[(LINE, "")]),
        ),
    ];
    hold(&cases).await;
}
