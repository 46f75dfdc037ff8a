//! The TLS settings for connections to stores: the authorities that weir trusts, and the certificate that it
//! shows to stores that require one.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustls::ClientConfig;
use rustls::pki_types::ServerName;

use super::files::{certificates, private_key, provider, roots, wrong_pair};
use super::session::Session;
use super::tally::Tally;
use crate::config::StoreTlsSettings;

/// The TLS settings for connections to stores; clones share the files that are in force.
#[derive(Clone, Debug)]
pub(in crate::runtime) struct StoreTls {
    files: Arc<StoreTlsSettings>,
    /// The TLS configuration in force. A lock is taken only when a connection is opened or files are read
    /// again, so it delays no request.
    config: Arc<Mutex<Arc<ClientConfig>>>,
    /// The name expected in the stores' certificates; none if each certificate must have the host name of its
    /// store.
    name: Option<ServerName<'static>>,
    tally: Arc<Tally>,
}

impl StoreTls {
    pub fn load(settings: &StoreTlsSettings, tally: &Arc<Tally>) -> Result<Self, String> {
        let name = settings.name.clone().map(ServerName::try_from).transpose();
        let name =
            name.map_err(|_| "--storage-tls-name: a host name or an IP address is expected".to_owned())?;
        let config = Arc::new(Mutex::new(read(settings)?));
        Ok(Self { files: Arc::new(settings.clone()), config, name, tally: Arc::clone(tally) })
    }

    /// Returns the paths of all certificate and key files that the settings name.
    pub fn paths(settings: &StoreTlsSettings) -> impl Iterator<Item = &Path> {
        let own = settings.own.iter().flat_map(|own| [&own.certificate, &own.key]);
        std::iter::once(&settings.ca).chain(own).map(PathBuf::as_path)
    }

    /// Reads the certificate files for connections to stores again; all clones of these settings open
    /// connections with them from now on. The error is a message for the operator.
    pub fn reload(&self) -> Result<(), String> {
        let config = read(&self.files)?;
        *self.config.lock().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    /// Clones these TLS settings, without the one name that was expected in the certificates of all stores: a
    /// store's certificate must have the store's own host name.
    #[must_use]
    pub fn by_host(&self) -> Self {
        Self { name: None, ..self.clone() }
    }

    /// Makes a TLS session for a connection to the store on this host. Fails if the host's name could not
    /// stand in a certificate, and no other name is expected.
    pub fn session(&self, host: &str) -> Result<Session, String> {
        let name = match &self.name {
            Some(name) => name.clone(),
            None => ServerName::try_from(host.to_owned()).map_err(|_| {
                format!("'{host}' is no name that could stand in a certificate (--storage-tls-name)")
            })?,
        };
        let config = Arc::clone(&self.config.lock().unwrap_or_else(PoisonError::into_inner));
        Session::with_store(config, host, name, &self.tally).map_err(|error| error.to_string())
    }
}

fn read(settings: &StoreTlsSettings) -> Result<Arc<ClientConfig>, String> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots("--storage-tls-ca", &settings.ca)?);
    let Some(own) = &settings.own else { return Ok(Arc::new(builder.with_no_client_auth())) };
    let chain = certificates("--storage-tls-cert", &own.certificate)?;
    let key = private_key("--storage-tls-key", &own.key)?;
    let config = builder.with_client_auth_cert(chain, key).map_err(|error| {
        wrong_pair(&error, ("--storage-tls-cert", &own.certificate), ("--storage-tls-key", &own.key))
    })?;
    Ok(Arc::new(config))
}
