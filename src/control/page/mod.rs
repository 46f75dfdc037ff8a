//! The page `/`, which holds all it needs. Its parts are the files beside this one. It fetches `/state.json`
//! each second and inserts the values as text, never as markup.

use std::sync::LazyLock;

use sha2::{Digest as _, Sha256};

use super::http::Response;

const MARKUP: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

static PAGE: LazyLock<String> =
    LazyLock::new(|| MARKUP.replace("/*style*/", STYLE).replace("/*script*/", SCRIPT));

/// The content security policy of the page. A browser runs and applies only the page's own script and style,
/// whatever else might get into it, connects only to weir, and shows the page within no other.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    format!(
        "default-src 'none'; script-src '{}'; style-src '{}'; connect-src 'self'; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'",
        hash(SCRIPT),
        hash(STYLE)
    )
});

/// Returns the page `/` with its security headers.
pub(super) fn page() -> Response {
    Response::page("text/html; charset=utf-8", PAGE.clone())
        .with_header("content-security-policy", POLICY.as_str())
        .with_header("x-frame-options", "DENY")
        .with_header("referrer-policy", "no-referrer")
        .with_header("cross-origin-resource-policy", "same-origin")
        .with_header("cross-origin-opener-policy", "same-origin")
}

/// Returns the hash by which a content security policy identifies a script or a style.
fn hash(text: &str) -> String {
    format!("sha256-{}", base64(&Sha256::digest(text.as_bytes())))
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let bits =
            three.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        for place in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * place) & 63) as usize];
            text.push(if place <= three.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::http::PAGES;
    use super::*;

    #[test]
    fn base64_is_that_of_others() {
        use ::base64::Engine as _;
        for length in 0..70_u8 {
            let bytes: Vec<u8> = (0..length).map(|n| n.wrapping_mul(151)).collect();
            assert_eq!(base64(&bytes), ::base64::engine::general_purpose::STANDARD.encode(&bytes));
        }
    }

    #[test]
    fn the_page_holds_all_it_needs_and_nothing_that_its_policy_forbids() {
        let response = page();
        let policy = response.headers.iter().find(|(name, _)| *name == "content-security-policy");
        let (_, policy) = policy.expect("it has one");
        assert!(
            policy.contains(&hash(SCRIPT)) && policy.contains(&hash(STYLE)) && !policy.contains("inline")
        );
        let body = &response.body;
        assert!(
            body.contains(&format!("<script>{SCRIPT}</script>")),
            "the hash is that of all between the tags"
        );
        assert!(body.contains(&format!("<style>{STYLE}</style>")));
        for word in
            ["http:", "https:", "//cdn", "@import", "url(", " src=", " style=", " onclick", " onload", "\r"]
        {
            assert!(!body.contains(word), "{word}");
        }
        for word in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("] {
            assert!(!SCRIPT.contains(word), "{word}: what is told is text");
        }
        assert!(body.len() < 64 * 1024);
    }

    #[test]
    fn the_page_leads_to_all_others() {
        for (path, _, _) in PAGES {
            assert!(path == "/" || MARKUP.contains(&format!("href=\"{path}\"")), "{path}");
        }
    }
}
