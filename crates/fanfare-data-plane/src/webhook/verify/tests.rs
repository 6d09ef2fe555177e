//! Which senders are believed under each scheme.

use super::*;

const TOLERANCE: Duration = Duration::from_secs(300);

fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        headers.append(*name, HeaderValue::from_str(value).unwrap());
    }
    headers
}

fn check(
    scheme: WebhookScheme,
    key: &str,
    fields: &[(&'static str, &str)],
    body: &str,
    now_s: u64,
) -> Result<Option<String>, Unverified> {
    let headers = headers(fields);
    let sent = Sent { headers: &headers, query: "", body: body.as_bytes() };
    verify(scheme, key.as_bytes(), sent, now_s, TOLERANCE)
}

fn sign(key: &[u8], text: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn github_signs_the_body() {
    // The example of GitHub's documentation.
    let key = "It's a Secret to Everybody";
    let good = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
    let github = |fields: &[(&'static str, &str)], body| check(WebhookScheme::Github, key, fields, body, 0);
    let signed = ("x-hub-signature-256", good);
    assert_eq!(github(&[signed], "Hello, World!"), Ok(None));
    let id = ("x-github-delivery", "72d3162e-cc78-11e3-81ab-4c9367dc0958");
    assert_eq!(github(&[signed, id], "Hello, World!"), Ok(Some(id.1.to_owned())));
    let upper = good.to_uppercase().replace("SHA256", "sha256");
    assert_eq!(github(&[("x-hub-signature-256", &upper)], "Hello, World!"), Ok(None));
    assert_eq!(github(&[signed], "Hello, World"), Err(Unverified::Wrong("X-Hub-Signature-256")));
    assert_eq!(github(&[], ""), Err(Unverified::Missing("X-Hub-Signature-256")));
    let malformed = Err(Unverified::Malformed("X-Hub-Signature-256"));
    for bad in ["", "sha256", "757107ea", "sha1=757107ea", "sha256=7", "sha256=zz"] {
        assert_eq!(github(&[("x-hub-signature-256", bad)], "Hello, World!"), malformed, "{bad}");
    }
    assert_eq!(github(&[signed, signed], "Hello, World!"), malformed, "twice");
    for cut in [0, 2, 62] {
        let wrong = github(&[("x-hub-signature-256", &good[..7 + cut])], "Hello, World!");
        assert_eq!(wrong, Err(Unverified::Wrong("X-Hub-Signature-256")), "the first {cut} digits");
    }
}

#[test]
fn stripe_signs_time_and_body() {
    let (key, time, body) = ("whsec_test", 1_700_000_000_u64, "{\"id\": \"evt_1\"}");
    let good = hex(&sign(key.as_bytes(), &format!("{time}.{body}")));
    let stripe =
        |field: &str, now| check(WebhookScheme::Stripe, key, &[("stripe-signature", field)], body, now);
    let other = "00".repeat(32);
    for field in [
        format!("t={time},v1={good}"),
        format!("t={time},v1={other},v1={good},v0=6ff"),
        format!(" v1={good} , t={time} "),
    ] {
        assert_eq!(stripe(&field, time), Ok(Some(good.clone())), "{field}");
        assert_eq!(stripe(&field, time + 300), Ok(Some(good.clone())), "a replay is the same delivery");
        assert_eq!(stripe(&field, time + 301), Err(Unverified::Time(TOLERANCE)));
        assert_eq!(stripe(&field, time - 301), Err(Unverified::Time(TOLERANCE)));
    }
    let wrong = Err(Unverified::Wrong("Stripe-Signature"));
    let malformed = Err(Unverified::Malformed("Stripe-Signature"));
    assert_eq!(stripe(&format!("t={},v1={good}", time + 1), time), wrong, "another time");
    assert_eq!(stripe(&format!("t={time},v0={good}"), time), wrong, "another scheme");
    assert_eq!(stripe(&format!("t={time}"), time), wrong);
    let many = format!("t={time}{},v1={good}", format!(",v1={other}").repeat(SIGNATURES_MAX));
    assert_eq!(stripe(&many, time), wrong, "no more than so many are looked at");
    for bad in [format!("v1={good}"), format!("t=+{time},v1={good}"), format!("t={time},t={time},v1={good}")]
    {
        assert_eq!(stripe(&bad, time), malformed, "{bad}");
    }
    assert_eq!(
        check(WebhookScheme::Stripe, key, &[], body, time),
        Err(Unverified::Missing("Stripe-Signature"))
    );
}

#[test]
fn standard_webhooks_sign_id_time_and_body() {
    // The example of the Standard Webhooks specification's libraries.
    let key = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let (id, time, body) = ("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, "{\"test\": 2432232314}");
    let good = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
    let time_text = time.to_string();
    let fields = |signature| {
        [("webhook-id", id), ("webhook-timestamp", time_text.as_str()), ("webhook-signature", signature)]
    };
    let standard = |key: &str, signature: &str, now| {
        let own =
            [("webhook-id", id), ("webhook-timestamp", time_text.as_str()), ("webhook-signature", signature)];
        check(WebhookScheme::Standard, key, &own, body, now)
    };
    let known = Ok(Some(id.to_owned()));
    assert_eq!(standard(key, good, time), known);
    assert_eq!(standard(&format!("{key}\n"), good, time), known, "a line's end is no part of the key");
    assert_eq!(standard(key, &format!("v1,AAAA v2,{} {good}", &good[3..]), time), known);
    assert_eq!(standard(&key[6..], good, time), known, "without the prefix");
    assert_eq!(standard(key, good, time + 301), Err(Unverified::Time(TOLERANCE)));
    let wrong = Err(Unverified::Wrong("webhook-signature"));
    for bad in ["", "v1,", "v1,!", &good[3..], &good.replace("v1", "v2")] {
        assert_eq!(standard(key, bad, time), wrong, "{bad}");
    }
    assert!(matches!(standard("whsec_?", good, time), Err(Unverified::Key(_))));
    for (index, name) in ["webhook-id", "webhook-timestamp", "webhook-signature"].into_iter().enumerate() {
        let mut some = fields(good).to_vec();
        some.remove(index);
        assert_eq!(check(WebhookScheme::Standard, key, &some, body, time), Err(Unverified::Missing(name)));
        let mut twice = fields(good).to_vec();
        twice.push(twice[index]);
        let found = check(WebhookScheme::Standard, key, &twice, body, time);
        assert_eq!(found, Err(Unverified::Malformed(name)));
    }
}

#[test]
fn a_token_is_in_a_field_or_in_the_url() {
    let empty = HeaderMap::new();
    let token = |headers: &HeaderMap, query| {
        verify(WebhookScheme::Token, b"s3cret\n", Sent { headers, query, body: b"" }, 0, TOLERANCE)
    };
    let bearer = |value| headers(&[("authorization", value)]);
    assert_eq!(token(&bearer("Bearer s3cret"), ""), Ok(None));
    assert_eq!(token(&bearer("bearer  s3cret"), "token=other"), Ok(None));
    assert_eq!(token(&empty, "a=b&token=s3cret"), Ok(None));
    assert_eq!(token(&bearer("Basic abc"), "token=s3cret"), Ok(None));
    let with_id = headers(&[("authorization", "Bearer s3cret"), ("webhook-id", "1")]);
    assert_eq!(token(&with_id, ""), Ok(Some("1".to_owned())));
    for (value, query) in [("Bearer s3cre", ""), ("Bearer s3crets", ""), ("Basic x", "token=")] {
        assert_eq!(token(&bearer(value), query), Err(Unverified::WrongToken), "{value} {query}");
    }
    for bad in ["s3cret", "Bearer "] {
        assert!(matches!(token(&bearer(bad), ""), Err(Unverified::Malformed(_))), "{bad}");
    }
    assert!(matches!(token(&empty, "tokens=s3cret"), Err(Unverified::Missing(_))));
}

#[test]
fn a_token_in_the_url_may_be_encoded() {
    let empty = HeaderMap::new();
    let token = |query| {
        let sent = Sent { headers: &empty, query, body: b"" };
        verify(WebhookScheme::Token, b"a+b/c=&", sent, 0, TOLERANCE)
    };
    for good in ["token=a%2Bb%2fc%3D%26", "x=y&%74oken=a%2Bb/c=%26"] {
        assert_eq!(token(good), Ok(None), "{good}");
    }
    for bad in ["token=a%2Bb%2fc%3D", "token=", "token=x&token=a%2Bb%2fc%3D%26", "token=a%252Bb/c=%26"] {
        assert_eq!(token(bad), Err(Unverified::WrongToken), "{bad}");
    }
    let sent = Sent { headers: &empty, query: "token=a+b", body: b"" };
    assert_eq!(verify(WebhookScheme::Token, b"a+b", sent, 0, TOLERANCE), Ok(None), "not encoded");
}

#[test]
fn a_blank_secret_is_nobodys() {
    let signed = |key: &[u8], text: &str| sign(key, text);
    let github = format!("sha256={}", hex(&signed(b"", "")));
    let stripe = format!("t=0,v1={}", hex(&signed(b"", "0.")));
    let standard = format!("v1,{}", STANDARD.encode(signed(b"", "1.0.")));
    let fields = headers(&[
        ("x-hub-signature-256", &github),
        ("stripe-signature", &stripe),
        ("webhook-id", "1"),
        ("webhook-timestamp", "0"),
        ("webhook-signature", &standard),
    ]);
    let schemes =
        [WebhookScheme::Github, WebhookScheme::Stripe, WebhookScheme::Standard, WebhookScheme::Token];
    for (scheme, key) in schemes
        .into_iter()
        .flat_map(|scheme| ["", " ", "\r\n", "\t \n"].map(|key| (scheme, key)))
        .chain([(WebhookScheme::Standard, "whsec_"), (WebhookScheme::Standard, "whsec_\n")])
    {
        let sent = Sent { headers: &fields, query: "token=", body: b"" };
        let found = verify(scheme, key.as_bytes(), sent, 0, TOLERANCE);
        assert!(matches!(found, Err(Unverified::Key(_))), "{scheme:?} {key:?}: {found:?}");
    }
}

#[test]
fn a_lines_end_is_no_part_of_any_secret() {
    let github = format!("sha256={}", hex(&sign(b"key", "b")));
    let stripe = format!("t=0,v1={}", hex(&sign(b"key", "0.b")));
    let standard = format!("v1,{}", STANDARD.encode(sign(b"key!!!", "1.0.b")));
    let fields = [
        ("x-hub-signature-256", github.as_str()),
        ("stripe-signature", &stripe),
        ("webhook-id", "1"),
        ("webhook-timestamp", "0"),
        ("webhook-signature", &standard),
        ("authorization", "Bearer key"),
    ];
    let base64 = STANDARD.encode(b"key!!!");
    let cases = [
        (WebhookScheme::Github, "key"),
        (WebhookScheme::Stripe, "key"),
        (WebhookScheme::Standard, base64.as_str()),
        (WebhookScheme::Token, "key"),
    ];
    for (scheme, key) in cases {
        for end in ["", "\n", "\r\n"] {
            let found = check(scheme, &format!("{key}{end}"), &fields, "b", 0);
            assert!(found.is_ok(), "{scheme:?} {end:?}: {found:?}");
        }
    }
}

#[test]
fn a_believed_token_goes_and_all_else_stays() {
    let cases = [
        ("Bearer s3+", "/a?b=c", "", "/a?b=c"),
        ("Bearer s3+", "/?token=s3%2B", "", "/"),
        ("Basic abc", "/a?x=1&token=s3%2B&y=%20", "Basic abc", "/a?x=1&y=%20"),
        ("Bearer other", "/?%74oken=s3+&token=other", "Bearer other", "/?token=other"),
        ("bearer  s3+", "/?tokens=s3+&token", "", "/?tokens=s3+&token"),
        ("Basic abc", "/", "Basic abc", "/"),
    ];
    for (authorization, target, kept, expected) in cases {
        let mut fields = headers(&[("authorization", authorization), ("x-a", "not s3+")]);
        assert_eq!(without_token(b"s3+\n", &mut fields, target), expected);
        let left = fields.get(AUTHORIZATION).map_or("", |value| value.to_str().unwrap());
        assert_eq!(left, kept, "{authorization} {target}");
        assert_eq!(fields.get("x-a").unwrap(), "not s3+");
    }
}

#[test]
fn fields_that_repeat_a_believed_token_go_too() {
    let long = "dGhlIHRva2Vu+w==";
    let repeating = [
        ("x-envoy-original-path", "/webhook/w?token=dGhlIHRva2Vu%2Bw%3D%3D&x=1"),
        ("x-original-url", "/webhook/w?x=1&token=dGhlIHRva2Vu+w=="),
        ("referer", "https://h/webhook/w?token=dGhlIHRva2Vu%2bw==#top"),
        ("x-token", long),
        ("x-forwarded-authorization", "Bearer dGhlIHRva2Vu+w=="),
        ("x-many", "a, dGhlIHRva2Vu+w==;b"),
    ];
    let mut fields = headers(&repeating);
    fields.extend(headers(&[("host", "h"), ("x-other", "/webhook/w?token=another")]));
    assert_eq!(without_token(long.as_bytes(), &mut fields, "/"), "/");
    let left: Vec<_> = fields.keys().map(HeaderName::as_str).collect();
    assert_eq!(left.len(), 2, "{left:?}");
    // A short one may be a part of anything, and goes where it is the whole or a URL's.
    let mut fields =
        headers(&[("x-a", "key"), ("x-b", "monkey"), ("x-c", "/?token=key"), ("content-type", "a/key")]);
    without_token(b"key", &mut fields, "/");
    let mut left: Vec<_> = fields.keys().map(HeaderName::as_str).collect();
    left.sort_unstable();
    assert_eq!(left, ["content-type", "x-b"]);
}

#[test]
fn who_could_not_be_believed_is_told_before_the_body_is_read() {
    let early = |scheme, fields: &[(&'static str, &str)], query| {
        may_be_known(scheme, b"key", &headers(fields), query, 1_000, TOLERANCE)
    };
    let unsigned = |scheme| early(scheme, &[], "");
    assert_eq!(unsigned(WebhookScheme::Github), Err(Unverified::Missing("X-Hub-Signature-256")));
    assert_eq!(unsigned(WebhookScheme::Stripe), Err(Unverified::Missing("Stripe-Signature")));
    assert_eq!(unsigned(WebhookScheme::Standard), Err(Unverified::Missing("webhook-timestamp")));
    assert!(matches!(unsigned(WebhookScheme::Token), Err(Unverified::Missing(_))));
    assert_eq!(early(WebhookScheme::Token, &[], "token=kez"), Err(Unverified::WrongToken));
    assert_eq!(early(WebhookScheme::Token, &[], "token=key"), Ok(()));
    assert_eq!(early(WebhookScheme::Github, &[("x-hub-signature-256", "sha256=00")], ""), Ok(()));
    for (time, expected) in [("1300", Ok(())), ("1301", Err(Unverified::Time(TOLERANCE)))] {
        let stripe = format!("t={time},v1=00");
        assert_eq!(early(WebhookScheme::Stripe, &[("stripe-signature", &stripe)], ""), expected);
        let standard = [("webhook-timestamp", time), ("webhook-signature", "v1,AAAA")];
        assert_eq!(early(WebhookScheme::Standard, &standard, ""), expected);
    }
}
