//! Where a body ends.

use super::{Are, Broken, Case, End, Refused, case, hold};

/// The head of a POST with these fields.
macro_rules! post {
    ($rest:expr) => {
        concat!("POST /function/hello/x HTTP/1.1\r\nhost: a\r\n", $rest)
    };
}

const LINE: &str = "POST /x HTTP/1.1";

/// RFC 9112, section 6.3: a length beside a coding is for the coding alone, and the end of the connection.
#[tokio::test]
async fn cl_te_and_te_cl_are_read_by_the_coding_and_nothing_after_them_is_believed() {
    const SMUGGLED: &str = post!(
        "content-length: 40\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nGET /function/hello/evil HTTP/1.1\r\nhost: a\r\n\r\n"
    );
    let cases = [
        case("CL.TE: what the length covers is a request", SMUGGLED, End(&[(LINE, "")])),
        case(
            "CL.TE: the length is too short",
            post!("content-length: 1\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"),
            End(&[(LINE, "hello")]),
        ),
        case(
            "CL.TE: the length fits",
            post!("content-length: 15\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"),
            End(&[(LINE, "hello")]),
        ),
        case(
            "TE.CL: what the chunk covers is a request",
            post!(
                "transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n24\r\nGET /function/hello/evil HTTP/1.1\r\n\r\n\r\n0\r\n\r\n"
            ),
            Broken,
        ),
        case(
            "TE.CL: a chunk of a request",
            post!(
                "transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n25\r\nGET /function/hello/evil HTTP/1.1\r\n\r\n\r\n0\r\n\r\n"
            ),
            End(&[(LINE, "GET /function/hello/evil HTTP/1.1\r\n\r\n")]),
        ),
        case(
            "TE.CL: a length of nothing",
            post!("transfer-encoding: chunked\r\ncontent-length: 0\r\n\r\n2\r\nab\r\n0\r\n\r\n"),
            End(&[(LINE, "ab")]),
        ),
        case(
            "TE.CL: a length that is none",
            post!("transfer-encoding: chunked\r\ncontent-length: +2\r\n\r\n2\r\nab\r\n0\r\n\r\n"),
            End(&[(LINE, "ab")]),
        ),
        case(
            "CL.TE on a GET",
            "GET /function/hello/x HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            End(&[("GET /x HTTP/1.1", "")]),
        ),
    ];
    hold(&cases).await;
}

#[tokio::test]
async fn te_obfuscations_are_refused_or_no_coding_at_all() {
    let chunks = "5\r\nhello\r\n0\r\n\r\n";
    assert_eq!(chunks.len(), 15);
    let cases = [
        case("unknown", post!("transfer-encoding: xchunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"), Refused(400)),
        case("identity", post!("transfer-encoding: identity\r\n\r\n"), Refused(400)),
        case("quoted", post!("transfer-encoding: \"chunked\"\r\n\r\n0\r\n\r\n"), Refused(400)),
        case("nothing", post!("transfer-encoding:\r\n\r\n0\r\n\r\n"), Refused(400)),
        case("with a parameter", post!("transfer-encoding: chunked;q=1\r\n\r\n0\r\n\r\n"), Refused(400)),
        case("not the last", post!("transfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n"), Refused(400)),
        case("the last of two", post!("transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n"), Refused(501)),
        case("twice", post!("transfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n"), Refused(501)),
        case("after a comma", post!("transfer-encoding: , chunked\r\n\r\n0\r\n\r\n"), Refused(501)),
        case(
            "twice in two fields",
            post!("transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"),
            Refused(501),
        ),
        case(
            "an unknown one before it",
            post!("transfer-encoding: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"),
            Refused(501),
        ),
        case(
            "an unknown one after it",
            post!("transfer-encoding: chunked\r\ntransfer-encoding: x\r\n\r\n0\r\n\r\n"),
            Refused(400),
        ),
        case("a space before the colon", post!("transfer-encoding : chunked\r\n\r\n0\r\n\r\n"), Refused(400)),
        case("a tab before the colon", post!("transfer-encoding\t: chunked\r\n\r\n0\r\n\r\n"), Refused(400)),
        case("a space before the name", post!(" transfer-encoding: chunked\r\n\r\n0\r\n\r\n"), Refused(400)),
        case("folded", post!("transfer-encoding:\r\n chunked\r\n\r\n0\r\n\r\n"), Refused(400)),
        case("behind a fold", post!("x: y\r\n transfer-encoding: chunked\r\n\r\n0\r\n\r\n"), Refused(400)),
        case("a vertical tab", post!("transfer-encoding: \x0bchunked\r\n\r\n0\r\n\r\n"), Refused(400)),
        case("a form feed", post!("transfer-encoding: chunked\x0c\r\n\r\n0\r\n\r\n"), Refused(400)),
        case("a NUL", post!("transfer-encoding: chunked\0\r\n\r\n0\r\n\r\n"), Refused(400)),
        case("a carriage return before it", post!("x: y\rtransfer-encoding: chunked\r\n\r\n"), Refused(400)),
        case("a carriage return in it", post!("transfer-encoding: chun\rked\r\n\r\n0\r\n\r\n"), Refused(400)),
        case("no-break space", post!("transfer-encoding: \u{a0}chunked\r\n\r\n0\r\n\r\n"), Refused(400)),
        case(
            "in HTTP/1.0",
            "POST /function/hello/x HTTP/1.0\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            Refused(400),
        ),
        case(
            "an underscore is another field, and not passed on",
            post!("transfer_encoding: chunked\r\ncontent-length: 2\r\n\r\nab"),
            Are(&[(LINE, "ab")]),
        ),
        case(
            "capitals and tabs are nothing new",
            post!("Transfer-Encoding:\t CHUNKED \t\r\n\r\n5\r\nhello\r\n0\r\n\r\n"),
            Are(&[(LINE, "hello")]),
        ),
        case(
            "listed as the connection's own",
            post!(
                "connection: transfer-encoding\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
            ),
            Are(&[(LINE, "hello")]),
        ),
    ];
    hold(&cases).await;
}

#[tokio::test]
async fn lengths_are_one_number_or_refused() {
    let cases: [Case; 21] = [
        case("differing", post!("content-length: 1\r\ncontent-length: 2\r\n\r\nab"), Refused(400)),
        case(
            "differing, longer first",
            post!("content-length: 2\r\ncontent-length: 1\r\n\r\nab"),
            Refused(400),
        ),
        case("a list", post!("content-length: 2, 2\r\n\r\nab"), Refused(400)),
        case("a list that differs", post!("content-length: 2, 3\r\n\r\nab"), Refused(400)),
        case("a plus", post!("content-length: +2\r\n\r\nab"), Refused(400)),
        case("a minus", post!("content-length: -2\r\n\r\nab"), Refused(400)),
        case("hexadecimal", post!("content-length: 0x2\r\n\r\nab"), Refused(400)),
        case("a space within", post!("content-length: 1 2\r\n\r\nab"), Refused(400)),
        case("a point", post!("content-length: 2.0\r\n\r\nab"), Refused(400)),
        case("nothing", post!("content-length:\r\n\r\nab"), Refused(400)),
        case("a space before the colon", post!("content-length : 2\r\n\r\nab"), Refused(400)),
        case("a vertical tab", post!("content-length: \x0b2\r\n\r\nab"), Refused(400)),
        case("Arabic digits", post!("content-length: \u{0662}\r\n\r\nab"), Refused(400)),
        case("2^64", post!("content-length: 18446744073709551616\r\n\r\nab"), Refused(400)),
        case("2^64 - 1", post!("content-length: 18446744073709551615\r\n\r\nab"), Refused(400)),
        case("30 digits", post!("content-length: 999999999999999999999999999999\r\n\r\nab"), Refused(400)),
        case("folded", post!("content-length: 1\r\n 2\r\n\r\nab"), Refused(400)),
        case(
            "the same twice is one",
            post!("content-length: 2\r\ncontent-length: 2\r\n\r\nab"),
            Are(&[(LINE, "ab")]),
        ),
        case("leading zeros", post!("content-length: 0002\r\n\r\nab"), Are(&[(LINE, "ab")])),
        case(
            "an underscore is another field, and not passed on",
            post!("content_length: 9\r\ncontent-length: 2\r\n\r\nab"),
            Are(&[(LINE, "ab")]),
        ),
        case(
            "listed as the connection's own",
            post!("connection: content-length\r\ncontent-length: 2\r\n\r\nab"),
            Are(&[(LINE, "ab")]),
        ),
    ];
    hold(&cases).await;
}

#[tokio::test]
async fn bodies_of_requests_that_need_none_are_theirs() {
    let cases = [
        case(
            "a request in the body of a GET",
            "GET /function/hello/x HTTP/1.1\r\nhost: a\r\ncontent-length: 18\r\n\r\nGET / HTTP/1.1\r\n\r\n",
            Are(&[("GET /x HTTP/1.1", "GET / HTTP/1.1\r\n\r\n")]),
        ),
        case(
            "a body of a DELETE in chunks",
            "DELETE /function/hello/x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
            Are(&[("DELETE /x HTTP/1.1", "ab")]),
        ),
        case(
            "two requests in one piece",
            "GET /function/hello/1 HTTP/1.1\r\nhost: a\r\n\r\nPOST /function/hello/2 HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\n\r\nb",
            Are(&[("GET /1 HTTP/1.1", ""), ("POST /2 HTTP/1.1", "b")]),
        ),
        case(
            "more than its length says is the next request",
            post!("content-length: 1\r\n\r\nabGET /function/hello/evil HTTP/1.1\r\n"),
            End(&[(LINE, "a")]),
        ),
        case(
            "HTTP/1.0 with a length",
            "POST /function/hello/x HTTP/1.0\r\nhost: a\r\ncontent-length: 2\r\n\r\nab",
            End(&[(LINE, "ab")]),
        ),
    ];
    hold(&cases).await;
}

/// A chunked body and what follows it.
macro_rules! chunked {
    ($body:expr) => {
        post!(concat!("transfer-encoding: chunked\r\n\r\n", $body))
    };
}

#[tokio::test]
async fn chunks_have_one_size_and_one_end() {
    let cases = [
        case("in pieces", chunked!("1\r\na\r\n4\r\nbcde\r\n0\r\n\r\n"), Are(&[(LINE, "abcde")])),
        case("hexadecimal", chunked!("A\r\n0123456789\r\n00\r\n\r\n"), Are(&[(LINE, "0123456789")])),
        case("leading zeros", chunked!("000005\r\nhello\r\n0\r\n\r\n"), Are(&[(LINE, "hello")])),
        case("extensions", chunked!("5;a=b;c=\"d\"\r\nhello\r\n0;x\r\n\r\n"), Are(&[(LINE, "hello")])),
        case("line ends within", chunked!("4\r\n\r\n\r\n\r\n0\r\n\r\n"), Are(&[(LINE, "\r\n\r\n")])),
        case("an end within", chunked!("5\r\n0\r\n\r\n\r\n0\r\n\r\n"), Are(&[(LINE, "0\r\n\r\n")])),
        case(
            "trailers that frame",
            chunked!("2\r\nab\r\n0\r\ncontent-length: 9\r\ntransfer-encoding: chunked\r\nhost: evil\r\n\r\n"),
            Are(&[(LINE, "ab")]),
        ),
        case(
            "bare line feeds in a trailer do not end the body",
            chunked!("0\r\nx: \n\nGET /function/hello/evil HTTP/1.1\n\n\r\n\r\n"),
            Are(&[(LINE, "")]),
        ),
        case("a bare line feed after the size", chunked!("5\nhello\r\n0\r\n\r\n"), Broken),
        case("a bare line feed in an extension", chunked!("5;a\nb\r\nhello\r\n0\r\n\r\n"), Broken),
        case("a bare line feed after the data", chunked!("5\r\nhello\n0\r\n\r\n"), Broken),
        case("a carriage return in the size", chunked!("5\rx\r\nhello\r\n0\r\n\r\n"), Broken),
        case("no size", chunked!("\r\nhello\r\n0\r\n\r\n"), Broken),
        case("a plus", chunked!("+5\r\nhello\r\n0\r\n\r\n"), Broken),
        case("a minus", chunked!("-5\r\nhello\r\n0\r\n\r\n"), Broken),
        case("0x", chunked!("0x5\r\nhello\r\n0\r\n\r\n"), Broken),
        case("a space before", chunked!(" 5\r\nhello\r\n0\r\n\r\n"), Broken),
        case("an underscore", chunked!("1_0\r\n0123456789abcdef\r\n0\r\n\r\n"), Broken),
        case("larger than any", chunked!("10000000000000005\r\nhello\r\n0\r\n\r\n"), Broken),
        case("longer than it says", chunked!("2\r\nabX\r\n0\r\n\r\n"), Broken),
        case("shorter than it says", chunked!("9\r\nab\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n"), Broken),
        case("a request for a trailer", chunked!("0\r\nGET /evil HTTP/1.1\r\nhost: a\r\n\r\n"), Broken),
    ];
    hold(&cases).await;
}
