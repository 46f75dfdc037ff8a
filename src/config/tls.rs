//! Settings of TLS for clients and for stores: addresses, and files of certificates. The runtime reads the
//! files themselves.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::address::addresses_of;
use super::{ConfigError, Flags};

/// Settings of TLS for clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsSettings {
    /// Addresses where clients connect with TLS.
    pub listen: Vec<SocketAddr>,
    /// Addresses where HTTP clients connect with TLS.
    pub http: Vec<SocketAddr>,
    /// File with weir's certificate for clients, and its chain up to the certificate that clients trust.
    pub certificate: PathBuf,
    /// File with the private key of the certificate.
    pub key: PathBuf,
    /// File with the authorities that sign clients' certificates; clients need no certificate if it is
    /// `None`.
    pub client_ca: Option<PathBuf>,
    /// File with the revocation lists for clients' certificates; none without such lists.
    pub client_crl: Option<PathBuf>,
    /// Time after which a TLS handshake with a client is given up.
    pub handshake_timeout: Duration,
    /// Maximum number of TLS handshakes with clients per second; further ones wait.
    pub handshakes_per_second: u32,
}

/// Settings of TLS for connections to stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreTlsSettings {
    /// File with the authorities that sign the stores' certificates.
    pub ca: PathBuf,
    /// Name that must be in the stores' certificates; `None` if it is each store's host name.
    pub name: Option<String>,
    /// weir's own certificate, for stores that require one; none if it shows none.
    pub own: Option<OwnCertificate>,
}

/// A certificate that weir shows to stores, with its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnCertificate {
    /// File with the certificate, and its chain up to the certificate that the stores trust.
    pub certificate: PathBuf,
    /// File with the private key of the certificate.
    pub key: PathBuf,
}

impl TlsSettings {
    /// Reads the settings of TLS for clients from the flags; `None` without TLS for clients.
    pub(super) fn from_flags(flags: &Flags) -> Result<Option<Self>, ConfigError> {
        let (listen, http) = (addresses_of(&flags.tls_listen), addresses_of(&flags.tls_http));
        let files = [
            ("--tls-cert", flags.tls_cert.as_ref()),
            ("--tls-key", flags.tls_key.as_ref()),
            ("--tls-client-ca", flags.tls_client_ca.as_ref()),
            ("--tls-client-crl", flags.tls_client_crl.as_ref()),
        ];
        if listen.is_empty() && http.is_empty() {
            return match files.iter().find(|(_, file)| file.is_some()) {
                Some((flag, _)) => Err(ConfigError::new(format!(
                    "{flag} is for connections with TLS, and there are none: --tls-listen ADDRESS or --tls-http ADDRESS is \
                     expected"
                ))),
                None => Ok(None),
            };
        }
        if flags.tls_client_crl.is_some() && flags.tls_client_ca.is_none() {
            return Err(ConfigError::new(
                "--tls-client-crl: --tls-client-ca FILE is expected with it, since clients need no certificate otherwise",
            ));
        }
        let flag = if listen.is_empty() { "--tls-http" } else { "--tls-listen" };
        let wanted = |what: &str| ConfigError::new(format!("{flag}: {what} is expected with it"));
        Ok(Some(Self {
            certificate: flags.tls_cert.clone().ok_or_else(|| wanted("--tls-cert FILE"))?,
            key: flags.tls_key.clone().ok_or_else(|| wanted("--tls-key FILE"))?,
            client_ca: flags.tls_client_ca.clone(),
            client_crl: flags.tls_client_crl.clone(),
            handshake_timeout: flags.tls_handshake_timeout,
            handshakes_per_second: flags.tls_handshake_rate as u32,
            listen,
            http,
        }))
    }
}

impl StoreTlsSettings {
    /// Reads the settings of TLS for stores from the flags; `None` without TLS for stores. Requires
    /// authorities to trust, since encryption alone does not prove which server replies.
    pub(super) fn from_flags(flags: &Flags) -> Result<Option<Self>, ConfigError> {
        let fleet = flags.fleet.as_ref().filter(|store| store.secure);
        let store = match &flags.storage {
            storage if storage.is_secure() => Some(("--storage", storage.to_string())),
            _ => fleet.map(|store| ("--fleet", store.to_string())),
        };
        let Some((flag, store)) = store else { return no_store(flags).map_or(Ok(None), Err) };
        let ca = flags.storage_tls_ca.clone().ok_or_else(|| {
            ConfigError::new(format!(
                "{flag} {store}: --storage-tls-ca FILE is expected with it, whose certificates tell that the server is the \
                 right one"
            ))
        })?;
        // The store of a fleet is always known by its host.
        if flags.storage_tls_name.is_some() && !flags.storage.is_secure() {
            return Err(ConfigError::new(
                "--storage-tls-name is for the stores of --storage, and they are without TLS: rediss://... or \
                 clusters://... is expected with it",
            ));
        }
        let own = OwnCertificate::from_flags(flags)?;
        Ok(Some(Self { ca, name: flags.storage_tls_name.clone(), own }))
    }
}

impl OwnCertificate {
    fn from_flags(flags: &Flags) -> Result<Option<Self>, ConfigError> {
        let alone = |flag: &str, other: &str| {
            Err(ConfigError::new(format!(
                "{flag}: {other} FILE is expected with it, the other half of the pair"
            )))
        };
        match (&flags.storage_tls_cert, &flags.storage_tls_key) {
            (Some(certificate), Some(key)) => {
                Ok(Some(Self { certificate: certificate.clone(), key: key.clone() }))
            }
            (Some(_), None) => alone("--storage-tls-cert", "--storage-tls-key"),
            (None, Some(_)) => alone("--storage-tls-key", "--storage-tls-cert"),
            (None, None) => Ok(None),
        }
    }
}

/// Returns the error for flags about stores with TLS if no store uses TLS; `None` if no such flag is given.
fn no_store(flags: &Flags) -> Option<ConfigError> {
    let given = [
        ("--storage-tls-ca", flags.storage_tls_ca.is_some()),
        ("--storage-tls-name", flags.storage_tls_name.is_some()),
        ("--storage-tls-cert", flags.storage_tls_cert.is_some()),
        ("--storage-tls-key", flags.storage_tls_key.is_some()),
    ];
    let (flag, _) = given.into_iter().find(|(_, given)| *given)?;
    Some(ConfigError::new(format!(
        "{flag} is for stores with TLS, and there are none: rediss://... or clusters://... is one"
    )))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::config::Config;

    fn config(arguments: &[&str]) -> Result<Config, String> {
        let words = ["weir"].iter().chain(arguments);
        let flags = Flags::try_parse_from(words).map_err(|error| error.to_string())?;
        Config::from_flags(flags).map_err(|error| error.to_string())
    }

    #[test]
    fn a_place_to_listen_goes_with_a_certificate_and_its_key() {
        assert_eq!(config(&[]).expect("right").tls, None);
        let given =
            ["--tls-listen", "0.0.0.0:7380", "--tls-cert", "c", "--tls-key", "k", "--tls-client-ca", "a"];
        let tls = config(&given).expect("right").tls.expect("it is on");
        assert_eq!((tls.listen.len(), tls.client_ca), (1, Some("a".into())));
        assert_eq!((tls.handshake_timeout, tls.handshakes_per_second), (Duration::from_secs(10), 500));
        config(&[&given[..], &["--listen", "off"]].concat()).expect("a way in is left");
        for (arguments, complaint) in [
            (&given[..4], "--tls-listen: --tls-key FILE is expected with it"),
            (&given[..2], "--tls-listen: --tls-cert FILE is expected with it"),
            (
                &given[2..4],
                "--tls-cert is for connections with TLS, and there are none: --tls-listen ADDRESS or --tls-http ADDRESS is \
                 expected",
            ),
            (
                &[&given[..6], &["--tls-client-crl", "r"]].concat(),
                "--tls-client-crl: --tls-client-ca FILE is expected with it, since clients need no certificate otherwise",
            ),
            (
                &["--tls-http", "0.0.0.0:1", "--tls-cert", "c"],
                "--tls-http: --tls-key FILE is expected with it",
            ),
        ] {
            assert_eq!(config(arguments).expect_err("wrong"), complaint);
        }
        let http = ["--tls-http", "0.0.0.0:7443", "--tls-cert", "c", "--tls-key", "k"];
        let tls = config(&http).expect("right").tls.expect("it is on");
        assert_eq!((tls.listen.len(), tls.http.len()), (0, 1));
        let twice = [&http[..], &["--tls-listen", "0.0.0.0:7443"]].concat();
        let told = "--tls-http and --tls-listen are both 0.0.0.0:7443: two ports are expected";
        assert_eq!(config(&twice).expect_err("one port"), told);
        let twice = [&given[..], &["--listen", "0.0.0.0:7380"]].concat();
        let told = "--tls-listen and --listen are both 0.0.0.0:7380: two ports are expected";
        assert_eq!(config(&twice).expect_err("one port"), told);
    }

    #[test]
    fn a_store_is_encrypted_and_known_or_neither() {
        let right = config(&["--storage", "rediss://h", "--storage-tls-ca", "a", "--storage-tls-name", "n"]);
        let tls = right.expect("right").store_tls.expect("it is on");
        assert_eq!((tls.ca, tls.name.as_deref()), ("a".into(), Some("n")));
        assert!(config(&["--storage", "clusters://h", "--storage-tls-ca", "a"]).is_ok());
        assert!(config(&["--fleet", "rediss://h", "--storage-tls-ca", "a"]).is_ok());
        for arguments in [
            &["--storage", "rediss://ann:secret@h"][..],
            &["--fleet", "rediss://ann:secret@h"],
            &["--storage", "redis://h", "--storage-tls-ca", "a"],
            &["--storage-tls-name", "n"],
            &["--storage-tls-key", "k"],
        ] {
            let told = config(arguments).expect_err("wrong");
            assert!(told.contains("--storage-tls") && !told.contains("secret"), "{told}");
        }
    }

    #[test]
    fn a_certificate_for_stores_goes_with_its_key() {
        let store = ["--storage", "rediss://h", "--storage-tls-ca", "a"];
        let both = [&store[..], &["--storage-tls-cert", "c", "--storage-tls-key", "k"]].concat();
        let own = config(&both).expect("right").store_tls.expect("it is on").own;
        assert_eq!(own, Some(OwnCertificate { certificate: "c".into(), key: "k".into() }));
        for (half, complaint) in [
            (["--storage-tls-cert", "c"], "--storage-tls-cert: --storage-tls-key FILE is expected"),
            (["--storage-tls-key", "k"], "--storage-tls-key: --storage-tls-cert FILE is expected"),
        ] {
            let told = config(&[&store[..], &half].concat()).expect_err("half of a pair");
            assert!(told.starts_with(complaint), "{told}");
        }
    }
}
