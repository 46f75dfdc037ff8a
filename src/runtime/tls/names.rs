//! The name in a client's certificate: its common name, or else the first DNS name among the alternative
//! names. The certificate was verified before; a malformed one yields no name here.

/// The object identifier of a certificate's common name, in DER.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
const ALTERNATIVE_NAMES: &[u8] = &[0x55, 0x1d, 0x11];

const INTEGER: u8 = 0x02;
const OCTET_STRING: u8 = 0x04;
const OBJECT: u8 = 0x06;
const UTF8_STRING: u8 = 0x0c;
const PRINTABLE_STRING: u8 = 0x13;
const IA5_STRING: u8 = 0x16;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
/// The DER tag of a certificate's version. Like the tags of extensions and of DNS names below, it is
/// context-specific.
const VERSION: u8 = 0xa0;
const EXTENSIONS: u8 = 0xa3;
const DNS_NAME: u8 = 0x82;

/// Returns the name in a client's certificate (DER): the common name, or else the first DNS name. `None` if
/// there is none.
pub(super) fn name_in(certificate: &[u8]) -> Option<&str> {
    let mut fields = Values(inner(inner_only(certificate, SEQUENCE)?, SEQUENCE)?);
    let first = fields.next()?;
    if first.0 == VERSION {
        fields.next().filter(|(tag, _)| *tag == INTEGER)?;
    }
    // These three are skipped: signature algorithm, issuer and validity.
    for _ in 0..3 {
        fields.next().filter(|(tag, _)| *tag == SEQUENCE)?;
    }
    let (_, subject) = fields.next().filter(|(tag, _)| *tag == SEQUENCE)?;
    if let Some(name) = common_name(subject) {
        return Some(name);
    }
    let (_, extensions) = fields.find(|(tag, _)| *tag == EXTENSIONS)?;
    alternative_name(inner_only(extensions, SEQUENCE)?)
}

/// Returns the last common name of a certificate's subject, which is the most specific. `None` if there is
/// none.
fn common_name(subject: &[u8]) -> Option<&str> {
    let parts = Values(subject).filter(|(tag, _)| *tag == SET).flat_map(|(_, part)| Values(part));
    let names = parts.filter_map(|(tag, pair)| {
        let mut pair = Values(pair);
        let is_name = tag == SEQUENCE && pair.next()? == (OBJECT, COMMON_NAME);
        let (kind, name) = pair.next()?;
        (is_name && matches!(kind, UTF8_STRING | PRINTABLE_STRING | IA5_STRING)).then_some(name)
    });
    text(names.last()?)
}

fn alternative_name(extensions: &[u8]) -> Option<&str> {
    let value = Values(extensions).find_map(|(_, extension)| {
        let mut fields = Values(extension);
        let is_wanted = fields.next()? == (OBJECT, ALTERNATIVE_NAMES);
        // A flag that says whether the extension is critical may stand between.
        fields.find(|(tag, _)| *tag == OCTET_STRING).filter(|_| is_wanted)
    });
    let (_, names) = value?;
    let (_, name) = Values(inner_only(names, SEQUENCE)?).find(|(tag, _)| *tag == DNS_NAME)?;
    text(name)
}

fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok().filter(|text| !text.is_empty())
}

/// Returns the content of the first DER value in `bytes`, which must have this tag. `None` if it has another
/// tag, or is malformed.
fn inner(bytes: &[u8], tag: u8) -> Option<&[u8]> {
    Values(bytes).next().filter(|(found, _)| *found == tag).map(|(_, inner)| inner)
}

/// Returns the content of the only DER value in `bytes`, which must have this tag and nothing after it. `None`
/// for any other bytes.
fn inner_only(bytes: &[u8], tag: u8) -> Option<&[u8]> {
    let mut values = Values(bytes);
    let (found, inner) = values.next()?;
    (found == tag && values.0.is_empty()).then_some(inner)
}

/// An iterator over the DER values in these bytes: the tag and the content of each. Ends at the first
/// malformed value.
struct Values<'a>(&'a [u8]);

impl<'a> Iterator for Values<'a> {
    type Item = (u8, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let [tag, first, rest @ ..] = self.0 else { return None };
        let (length, rest) = match first {
            0..=0x7f => (usize::from(*first), rest),
            0x81..=0x84 => {
                let (length, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
                (length.iter().fold(0_usize, |sum, byte| sum << 8 | usize::from(*byte)), rest)
            }
            _ => return None,
        };
        let (value, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((*tag, value))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn value(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
        let inner = parts.concat();
        let mut out = vec![tag];
        match inner.len() {
            length @ 0..0x80 => out.push(length as u8),
            length => {
                out.push(0x82);
                out.extend_from_slice(&(length as u16).to_be_bytes());
            }
        }
        out.extend_from_slice(&inner);
        out
    }

    fn certificate(subject: &[&[u8]], extensions: &[&[u8]]) -> Vec<u8> {
        let nothing = value(SEQUENCE, &[]);
        let version = value(VERSION, &[&value(INTEGER, &[&[2]])]);
        let serial = value(INTEGER, &[&[7; 20]]);
        let extensions = value(EXTENSIONS, &[&value(SEQUENCE, extensions)]);
        let subject = value(SEQUENCE, subject);
        let key = value(SEQUENCE, &[&[0x03, 0x01, 0x00], &vec![0x05; 300]]);
        let fields: [&[u8]; 8] =
            [&version, &serial, &nothing, &nothing, &nothing, &subject, &key, &extensions];
        value(SEQUENCE, &[&value(SEQUENCE, &fields), &nothing])
    }

    fn part(object: &[u8], kind: u8, name: &[u8]) -> Vec<u8> {
        value(SET, &[&value(SEQUENCE, &[&value(OBJECT, &[object]), &value(kind, &[name])])])
    }

    fn names(names: &[&[u8]]) -> Vec<u8> {
        let critical: &[u8] = &[0x01, 0x01, 0xff];
        let inner = value(OCTET_STRING, &[&value(SEQUENCE, names)]);
        value(SEQUENCE, &[&value(OBJECT, &[ALTERNATIVE_NAMES]), critical, &inner])
    }

    #[test]
    fn the_common_name_or_else_the_first_dns_name() {
        let organisation = part(&[0x55, 0x04, 0x0a], UTF8_STRING, b"Shop");
        let name = part(COMMON_NAME, UTF8_STRING, b"checkout");
        let other: Vec<u8> =
            value(SEQUENCE, &[&value(OBJECT, &[&[0x55, 0x1d, 0x0f]]), &value(OCTET_STRING, &[])]);
        let dns = names(&[
            &value(0x87, &[&[10, 0, 0, 1]]),
            &value(DNS_NAME, &[b"cart"]),
            &value(DNS_NAME, &[b"b"]),
        ]);
        assert_eq!(name_in(&certificate(&[&organisation, &name], &[&dns])), Some("checkout"));
        assert_eq!(name_in(&certificate(&[&organisation], &[&other, &dns])), Some("cart"));
        assert_eq!(name_in(&certificate(&[&organisation], &[&other])), None);
        assert_eq!(name_in(&certificate(&[], &[])), None);
        assert_eq!(name_in(&certificate(&[&part(COMMON_NAME, UTF8_STRING, b"\xff")], &[])), None);
    }

    #[test]
    fn a_certificate_that_is_cut_off_names_nobody() {
        let whole = certificate(&[&part(COMMON_NAME, PRINTABLE_STRING, b"a")], &[]);
        assert_eq!(name_in(&whole), Some("a"));
        for length in 0..whole.len() {
            assert_eq!(name_in(&whole[..length]), None, "{length}");
        }
    }

    proptest! {
        #[test]
        fn whatever_comes_is_looked_at_to_its_end(bytes in proptest::collection::vec(any::<u8>(), 0..200), at in 0_usize..400) {
            let mut whole = certificate(&[&part(COMMON_NAME, UTF8_STRING, b"a")], &[&names(&[&value(DNS_NAME, &[b"b"])])]);
            let at = at % whole.len();
            for (place, byte) in whole[at..].iter_mut().zip(&bytes) {
                *place = *byte;
            }
            let _ = (name_in(&bytes), name_in(&whole));
        }
    }
}
