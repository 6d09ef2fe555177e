//! What of the node's settings for its installers is kept from installations, whose scripts are of anyone.

/// Said where something was kept back.
pub(super) const NOTE: &str = "the credentials in this node's settings for the installer are not handed to installations, \
                               whose scripts could take them: deploy with the dependencies where they need any";

/// A text without the user and password of each URL in it.
pub(super) fn without_credentials(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + "://".len());
        kept.push_str(before);
        let end = after.find(|c: char| "/?#\"'".contains(c) || c.is_whitespace()).unwrap_or(after.len());
        // A password may hold anything but what ends it here, its own `@` included.
        let start = after[..end].rfind('@').map_or(0, |at| at + 1);
        rest = &after[start..];
    }
    kept.push_str(rest);
    kept
}

/// Whether one of npm's settings, by its name without the prefix, in lower case and with `_` for `-`, holds what proves
/// who one is: to any registry (`_auth`), to one host (`//host/:_authToken`), or to a server that asks for a
/// certificate.
pub(super) fn is_npm_credential(setting: &str) -> bool {
    const NAMES: [&str; 8] =
        ["username", "email", "otp", "cert", "key", "certfile", "keyfile", "init_author_email"];
    setting.starts_with('_')
        || setting.starts_with("//")
        || setting.contains(":_")
        || NAMES.contains(&setting)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_lose_who_asks() {
        for (text, kept) in [
            ("", ""),
            ("https://index.example/simple", "https://index.example/simple"),
            ("https://me:p%40ss@index.example/simple", "https://index.example/simple"),
            ("http://a:b@c@h:81", "http://h:81"),
            ("https://h/a@b", "https://h/a@b"),
            (
                "[global]\nindex-url = https://u:p@h/x # y\nextra = http://t@i http://j\n",
                "[global]\nindex-url = https://h/x # y\nextra = http://i http://j\n",
            ),
            ("git+ssh://git@h/x://u@y", "git+ssh://h/x://y"),
            ("://", "://"),
        ] {
            assert_eq!(without_credentials(text), kept, "{text}");
        }
    }

    #[test]
    fn credentials_are_known_by_their_names() {
        for secret in [
            "_auth",
            "_authtoken",
            "_password",
            "//registry.example/:_authtoken",
            "//h/:username",
            "key",
            "otp",
        ] {
            assert!(is_npm_credential(secret), "{secret}");
        }
        for plain in ["registry", "@scope:registry", "strict_ssl", "fetch_retries", "cafile"] {
            assert!(!is_npm_credential(plain), "{plain}");
        }
    }
}
