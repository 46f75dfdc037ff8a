//! Certificates and keys from their files, with a word about what is wrong with them.

use std::fmt::Display;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use super::session::Session;
use super::tally::Tally;
use crate::config::{StoreTlsSettings, TlsSettings};
use crate::values::limits::TLS_FILE_BYTES_MAX;

/// Where weir's own certificate is, and who signs those of clients.
#[derive(Clone, Debug)]
pub(in crate::runtime) struct TlsFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
    pub client_ca: Option<PathBuf>,
}

impl TlsFiles {
    /// The files that flags name.
    pub fn of(settings: &TlsSettings) -> Self {
        Self {
            certificate: settings.certificate.clone(),
            key: settings.key.clone(),
            client_ca: settings.client_ca.clone(),
        }
    }

    /// Each of them.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        [Some(&self.certificate), Some(&self.key), self.client_ca.as_ref()]
            .into_iter()
            .flatten()
            .map(PathBuf::as_path)
    }

    /// What handshakes work with, as the files are now.
    pub fn load(&self) -> Result<Arc<ServerConfig>, String> {
        let wrong =
            |flag: &str, path: &Path, problem: &dyn Display| format!("{flag} {}: {problem}", path.display());
        let chain = certificates("--tls-cert", &self.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(&read("--tls-key", &self.key)?).map_err(|_| {
            wrong("--tls-key", &self.key, &"no key is in it that could be read (PEM, not encrypted)")
        })?;
        let provider = provider();
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let roots = Arc::new(roots("--tls-client-ca", path)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
                builder.with_client_cert_verifier(
                    verifier.map_err(|error| wrong("--tls-client-ca", path, &error))?,
                )
            }
        };
        let mut config = builder.with_single_cert(chain, key).map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => wrong(
                "--tls-key",
                &self.key,
                &format!("it is not the key of the first certificate in {}", self.certificate.display()),
            ),
            rustls::Error::InvalidCertificate(_) => wrong("--tls-cert", &self.certificate, &error),
            error => wrong("--tls-key", &self.key, &error),
        })?;
        // Clients that come again need no signature of ours.
        config.ticketer = ring::Ticketer::new().map_err(|error| error.to_string())?;
        Ok(Arc::new(config))
    }
}

/// How stores are spoken to.
#[derive(Clone, Debug)]
pub(in crate::runtime) struct StoreTls {
    config: Arc<ClientConfig>,
    /// The name in their certificates, where it is not that of the host.
    name: Option<ServerName<'static>>,
    tally: Arc<Tally>,
}

impl StoreTls {
    pub fn load(settings: &StoreTlsSettings, tally: &Arc<Tally>) -> Result<Self, String> {
        let name = settings.name.clone().map(ServerName::try_from).transpose();
        let name =
            name.map_err(|_| "--storage-tls-name: a host's name or its address is wanted".to_owned())?;
        let roots = roots("--storage-tls-ca", &settings.ca)?;
        let config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self { config: Arc::new(config), name, tally: Arc::clone(tally) })
    }

    /// The same for a store with the name of its host.
    #[must_use]
    pub fn by_host(&self) -> Self {
        Self { name: None, ..self.clone() }
    }

    /// A session with a store there.
    pub fn session(&self, host: &str) -> Result<Session, String> {
        let name = match &self.name {
            Some(name) => name.clone(),
            None => ServerName::try_from(host.to_owned()).map_err(|_| {
                format!("'{host}' is no name that could stand in a certificate (--storage-tls-name)")
            })?,
        };
        Session::with_store(Arc::clone(&self.config), host, name, &self.tally)
            .map_err(|error| error.to_string())
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn roots(flag: &str, path: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(flag, path)? {
        roots.add(certificate).map_err(|error| format!("{flag} {}: {error}", path.display()))?;
    }
    Ok(roots)
}

/// At least one.
fn certificates(flag: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let text = read(flag, path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(format!("{flag} {}: no certificate is in it (PEM)", path.display())),
        Err(_) => Err(format!("{flag} {}: it is damaged: no PEM could be read", path.display())),
    }
}

fn read(flag: &str, path: &Path) -> Result<Vec<u8>, String> {
    let wrong = |problem: &dyn Display| format!("{flag} {}: {problem}", path.display());
    let file = File::open(path).map_err(|error| wrong(&error))?;
    let mut bytes = Vec::new();
    file.take(TLS_FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| wrong(&error))?;
    if bytes.len() as u64 > TLS_FILE_BYTES_MAX {
        return Err(wrong(&format!("at most {TLS_FILE_BYTES_MAX} bytes are wanted")));
    }
    Ok(bytes)
}
