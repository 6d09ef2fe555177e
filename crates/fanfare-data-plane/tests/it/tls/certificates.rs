//! Which certificates are shown, and which are refused.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use fanfare_data_plane::{DataPlane, Options};
use tokio_util::sync::CancellationToken;

use super::{NAME, Pair, connect, http1, rig, write_key};
use crate::client::request;
use crate::rig::{nowhere, within};

/// What a data plane says that is started with these files.
fn refused(pair: &Pair) -> String {
    let options = Options { tls: Some(pair.options()), ..Options::default() };
    let stop = CancellationToken::new();
    let _guard = stop.clone().drop_guard();
    let error = DataPlane::start(options, nowhere(), stop).expect_err("it cannot be used").to_string();
    let key = fs::read_to_string(pair.dir.path().join("key.pem")).unwrap_or_default();
    for line in key.lines().filter(|line| line.len() > 10 && !line.starts_with("-----")) {
        assert!(!error.contains(line), "the key is told: {error}");
    }
    error
}

#[tokio::test]
async fn what_cannot_be_used_is_refused_with_what_is_wrong() {
    type Break = fn(&std::path::Path);
    let cases: [(Break, &str); 13] = [
        (|dir| fs::remove_file(dir.join("cert.pem")).unwrap(), "cannot read DIR/cert.pem: No such file"),
        (|dir| fs::remove_file(dir.join("key.pem")).unwrap(), "cannot read DIR/key.pem: No such file"),
        (|dir| fs::write(dir.join("cert.pem"), "").unwrap(), "DIR/cert.pem has no certificate in PEM form"),
        (
            |dir| fs::write(dir.join("cert.pem"), "-----BEGIN CERTIFICATE-----\nAAAA\n").unwrap(),
            "DIR/cert.pem is no PEM file: ",
        ),
        (
            |dir| {
                let text = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
                fs::write(dir.join("cert.pem"), text).unwrap();
            },
            "DIR/cert.pem cannot be used: ",
        ),
        (
            |dir| fs::write(dir.join("cert.pem"), vec![b'\n'; (1 << 20) + 1]).unwrap(),
            "DIR/cert.pem has more than 1048576 bytes",
        ),
        (
            |dir| {
                fs::remove_file(dir.join("cert.pem")).unwrap();
                fs::create_dir(dir.join("cert.pem")).unwrap();
            },
            "DIR/cert.pem is no regular file",
        ),
        (
            |dir| drop(Pair::write(&dir.join("cert.pem"), &dir.join("other.pem"))),
            "the key in DIR/key.pem does not belong to the certificate in DIR/cert.pem",
        ),
        (
            |dir| fs::set_permissions(dir.join("key.pem"), fs::Permissions::from_mode(0o644)).unwrap(),
            "DIR/key.pem is a private key with the mode 0644; `chmod 600` it",
        ),
        (
            |dir| fs::set_permissions(dir.join("key.pem"), fs::Permissions::from_mode(0o660)).unwrap(),
            "DIR/key.pem is a private key with the mode 0660; `chmod 600` it",
        ),
        (
            |dir| write_key(&dir.join("key.pem"), &fs::read_to_string(dir.join("cert.pem")).unwrap()),
            "DIR/key.pem has no private key in PEM form",
        ),
        (
            |dir| {
                let key = fs::read_to_string(dir.join("key.pem")).unwrap();
                write_key(&dir.join("key.pem"), &key.replace("-----END", "----END"));
            },
            "DIR/key.pem has no private key in PEM form",
        ),
        (
            |dir| {
                let text = "-----BEGIN PRIVATE KEY-----\nc2VjcmV0c2VjcmV0\n-----END PRIVATE KEY-----\n";
                write_key(&dir.join("key.pem"), text);
            },
            "DIR/key.pem holds a private key of no known kind",
        ),
    ];
    for (break_it, why) in cases {
        let pair = Pair::new();
        break_it(pair.dir.path());
        let said = refused(&pair);
        let why = why.replace("DIR", pair.dir.path().to_str().unwrap());
        assert!(said.starts_with(&why), "{said:?} instead of {why:?}");
    }
}

#[tokio::test]
async fn the_group_may_read_the_key_and_links_are_followed() {
    let pair = Pair::new();
    let (key, behind) = (pair.dir.path().join("key.pem"), pair.dir.path().join("behind.pem"));
    fs::rename(&key, &behind).unwrap();
    fs::set_permissions(&behind, fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::symlink(&behind, &key).unwrap();
    let (rig, _control) = rig(&pair, |_| {}).await;
    assert!(connect(rig.address(), &pair.certificate, &["h2"]).await.is_ok());
}

#[tokio::test]
async fn a_new_certificate_is_shown_and_no_connection_is_dropped() {
    let pair = Pair::new();
    let (rig, _control) = rig(&pair, |tls| tls.recheck = Duration::from_secs(3_600)).await;
    let mut open = http1(rig.address(), &pair.certificate).await;
    assert_eq!(open.call(request("/_fanfare/health")).await.status, 200);
    let (certificate, key) = (pair.dir.path().join("cert.pem"), pair.dir.path().join("key.pem"));
    let old_key = fs::read_to_string(&key).unwrap();
    let fresh = Pair::write(&certificate, &key);
    let fresh_key = fs::read_to_string(&key).unwrap();

    // Half of it is there: the old one stays.
    write_key(&key, &old_key);
    let error = rig.data_plane.reload_certificate().unwrap_err().to_string();
    assert!(error.contains("does not belong to the certificate"), "{error}");
    assert!(connect(rig.address(), &pair.certificate, &["h2"]).await.is_ok());

    write_key(&key, &fresh_key);
    rig.data_plane.reload_certificate().unwrap();
    assert!(connect(rig.address(), &pair.certificate, &["h2"]).await.is_err(), "the old one is gone");
    assert!(connect(rig.address(), &fresh, &["h2"]).await.is_ok());
    assert_eq!(open.call(request("/_fanfare/health")).await.status, 200, "what is open goes on");
}

#[tokio::test]
async fn a_new_certificate_is_noticed_in_its_file() {
    let pair = Pair::new();
    let (rig, _control) = rig(&pair, |tls| tls.recheck = Duration::from_millis(10)).await;
    // As those do that renew them: beside it, and then in its place. Between the two renames nothing fits.
    let beside = Pair::new();
    for name in ["cert.pem", "key.pem"] {
        fs::rename(beside.dir.path().join(name), pair.dir.path().join(name)).unwrap();
    }
    within("the new certificate", async {
        while connect(rig.address(), &beside.certificate, &["h2"]).await.is_err() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(connect(rig.address(), &pair.certificate, &["h2"]).await.is_err(), "{NAME} has one certificate");
}
