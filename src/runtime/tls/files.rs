//! Reads certificates and keys from their files, with an error message for each fault in them, and makes the
//! TLS configuration for clients.

use std::fmt::Display;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, VerifierBuilderError, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};

use crate::config::TlsSettings;
use crate::values::limits::TLS_FILE_BYTES_MAX;

/// The paths of weir's own certificate and key, and of the authorities and revocation lists by which clients'
/// certificates are verified.
#[derive(Clone, Debug)]
pub(in crate::runtime) struct TlsFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
    pub client_ca: Option<PathBuf>,
    pub client_crl: Option<PathBuf>,
}

/// The TLS configuration with which handshakes with clients are done, as made from the files that were in force
/// when it was made.
#[derive(Debug)]
pub(in crate::runtime) struct Terms {
    pub config: Arc<ServerConfig>,
    /// The verifier of clients' certificates; none if clients need no certificate.
    pub verifier: Option<Arc<dyn ClientCertVerifier>>,
}

impl TlsFiles {
    /// Returns the paths of the TLS files for clients that the settings name.
    pub fn of(settings: &TlsSettings) -> Self {
        Self {
            certificate: settings.certificate.clone(),
            key: settings.key.clone(),
            client_ca: settings.client_ca.clone(),
            client_crl: settings.client_crl.clone(),
        }
    }

    /// Returns the paths of all TLS files for clients that are set.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        [Some(&self.certificate), Some(&self.key), self.client_ca.as_ref(), self.client_crl.as_ref()]
            .into_iter()
            .flatten()
            .map(PathBuf::as_path)
    }

    /// Reads all TLS files for clients and makes the configuration for handshakes with them. The error is a
    /// message for the operator.
    pub fn load(&self) -> Result<Arc<Terms>, String> {
        let (chain, key) =
            (certificates("--tls-cert", &self.certificate)?, private_key("--tls-key", &self.key)?);
        let provider = provider();
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let verifier =
            self.client_ca.as_ref().map(|authority| self.verifier(authority, provider)).transpose()?;
        let builder = match &verifier {
            None => builder.with_no_client_auth(),
            Some(verifier) => builder.with_client_cert_verifier(Arc::clone(verifier)),
        };
        let mut config = builder.with_single_cert(chain, key).map_err(|error| {
            wrong_pair(&error, ("--tls-cert", &self.certificate), ("--tls-key", &self.key))
        })?;
        if verifier.is_some() {
            // A resumed session shows the certificate of an earlier handshake, which rustls does not verify
            // again though it may have expired, so each connection needs a handshake of its own.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        } else {
            // Session tickets let clients that reconnect skip the signature. They are valid as long as this
            // configuration is in force.
            config.ticketer = ring::Ticketer::new().map_err(|error| error.to_string())?;
        }
        Ok(Arc::new(Terms { config: Arc::new(config), verifier }))
    }

    fn verifier(
        &self,
        authority: &Path,
        provider: Arc<CryptoProvider>,
    ) -> Result<Arc<dyn ClientCertVerifier>, String> {
        let roots = Arc::new(roots("--tls-client-ca", authority)?);
        let mut verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
        if let Some(lists) = &self.client_crl {
            verifier = verifier.with_crls(revocations("--tls-client-crl", lists)?);
        }
        verifier.build().map_err(|error| match (error, &self.client_crl) {
            (VerifierBuilderError::InvalidCrl(error), Some(lists)) => {
                let problem = format!("{}: lists of version 2 are expected", rustls::Error::from(error));
                wrong("--tls-client-crl", lists, &problem)
            }
            (error, _) => wrong("--tls-client-ca", authority, &error),
        })
    }
}

/// Builds the error message for a problem with the file at `path`, which the flag `flag` names.
fn wrong(flag: &str, path: &Path, problem: &dyn Display) -> String {
    format!("{flag} {}: {problem}", path.display())
}

/// Builds the error message for a certificate and key that do not go together. The pairs are the flag and the
/// path of each file; the message names the file that is wrong.
pub(super) fn wrong_pair(
    error: &rustls::Error,
    (certificate_flag, certificate): (&str, &Path),
    (key_flag, key): (&str, &Path),
) -> String {
    match error {
        rustls::Error::InconsistentKeys(_) => {
            let problem = format!("it is not the key of the first certificate in {}", certificate.display());
            wrong(key_flag, key, &problem)
        }
        rustls::Error::InvalidCertificate(_) => wrong(certificate_flag, certificate, error),
        error => wrong(key_flag, key, error),
    }
}

pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

pub(super) fn roots(flag: &str, path: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(flag, path)? {
        roots.add(certificate).map_err(|error| wrong(flag, path, &error))?;
    }
    Ok(roots)
}

pub(super) fn private_key(flag: &str, path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    let problem = "no key is in it that could be read (PEM, not encrypted)";
    PrivateKeyDer::from_pem_slice(&read(flag, path)?).map_err(|_| wrong(flag, path, &problem))
}

/// Reads the certificate revocation lists in a PEM file. The error is a message for the operator, also if
/// there are none. `flag` is the flag that named the file.
fn revocations(flag: &str, path: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, String> {
    objects(flag, path, "no revocation list")
}

/// Reads the certificates in a PEM file. The error is a message for the operator, also if there are none.
/// `flag` is the flag that named the file.
pub(super) fn certificates(flag: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    objects(flag, path, "no certificate")
}

fn objects<Kind: PemObject>(flag: &str, path: &Path, none: &str) -> Result<Vec<Kind>, String> {
    let text = read(flag, path)?;
    let found: Result<Vec<Kind>, _> = Kind::pem_slice_iter(&text).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(wrong(flag, path, &format!("{none} is in it (PEM)"))),
        Err(_) => Err(wrong(flag, path, &"it is damaged: no PEM could be read")),
    }
}

fn read(flag: &str, path: &Path) -> Result<Vec<u8>, String> {
    let wrong = |problem: &dyn Display| wrong(flag, path, problem);
    let file = File::open(path).map_err(|error| wrong(&error))?;
    let mut bytes = Vec::new();
    file.take(TLS_FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| wrong(&error))?;
    if bytes.len() as u64 > TLS_FILE_BYTES_MAX {
        return Err(wrong(&format!("at most {TLS_FILE_BYTES_MAX} bytes are expected")));
    }
    Ok(bytes)
}
