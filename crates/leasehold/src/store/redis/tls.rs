//! TLS: which files belong to a connection, and what it means when no trust comes about.
//!
//! The authorities are those this machine trusts, as its administrator has set them up, or those in one file and no others.
//! Nobody is believed without proof: whoever could pretend to be the server could give one lock to two.

use std::error::Error as _;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redis::{Client, ClientTlsConfig, ConnectionInfo, RedisError, TlsCertificates};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{AlertDescription, CertificateError};

use crate::error::{Error, Result};

const CA: &str = "name the file of its authority with `?ca=FILE` in the store URL";
const CERT: &str = "give one with `?cert=FILE&key=FILE` in the store URL";

/// What a server without TLS has to say to a client with it: nothing that makes sense, or nothing at all.
pub(super) const NO_TLS: &str =
    "what answers there does not speak TLS; name its TLS port, or write `redis://` if it has none";

/// What the URL names beside where the server is.
#[derive(Debug, Clone, Default)]
pub(in crate::store) struct Files {
    /// Who may sign the server's certificate, in place of those this machine trusts.
    pub(in crate::store) ca: Option<PathBuf>,
    /// Our own certificate, with those between it and its authority.
    pub(in crate::store) cert: Option<PathBuf>,
    /// The key of that.
    pub(in crate::store) key: Option<PathBuf>,
}

impl Files {
    /// Whether they make sense together, for a URL of this kind.
    pub(super) fn check(&self, is_tls: bool) -> Result<()> {
        let named = [("ca", &self.ca), ("cert", &self.cert), ("key", &self.key)];
        let refuse = |(what, file): (&str, &Option<PathBuf>), why: &str| {
            let given = format!("{what}={}", file.as_deref().unwrap_or(Path::new("")).display());
            Err(Error::invalid("parameter in the store URL", given, why))
        };
        match named.into_iter().find(|(_, file)| file.is_some()) {
            Some(first) if !is_tls => refuse(first, "it is for TLS: write rediss://… or valkeys://…"),
            _ if self.cert.is_some() != self.key.is_some() => match self.cert.is_some() {
                true => refuse(named[1], "it takes its key too: write cert=FILE&key=FILE"),
                false => refuse(named[2], "it takes its certificate too: write cert=FILE&key=FILE"),
            },
            _ => Ok(()),
        }
    }

    /// Reads them anew each time: whoever runs for long connects again with what has been renewed since.
    pub(super) fn client(&self, info: ConnectionInfo) -> Result<Client> {
        // Nobody's choice is overruled; without any, TLS would panic.
        if CryptoProvider::get_default().is_none() {
            let _ = ring::default_provider().install_default();
        }
        let root_cert = match &self.ca {
            Some(file) => {
                let pem = read(file)?;
                certificates(&pem, file)?;
                Some(pem)
            }
            None => None,
        };
        let client_tls = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => Some(identity(cert, key)?),
            _ => None,
        };
        Client::build_with_tls(info, TlsCertificates { client_tls, root_cert })
            .map_err(|error| Error::Untrusted { store: "redis", why: error.to_string() })
    }

    /// What a connection failed by, if that was trust; by our word or by theirs.
    pub(super) fn explained(&self, error: &RedisError, host: &str) -> Option<Error> {
        let untrusted = |why: String| Some(Error::Untrusted { store: "redis", why });
        let refused = |why: String| Some(Error::Refused { store: "redis", why });
        let here = match &self.ca {
            Some(file) => format!("by nobody in `{}`", file.display()),
            None => "by nobody this machine trusts".to_owned(),
        };
        let cause = cause(error)?;
        let tls = match cause.downcast_ref::<io::Error>() {
            Some(io) => io.get_ref()?.downcast_ref::<rustls::Error>()?,
            None => match cause.downcast_ref::<rustls::Error>() {
                Some(tls) => tls,
                // What this machine trusts could not be read, or the host is no name.
                None if error.is_io_error() => return untrusted(format!("{error}; set that right, or {CA}")),
                None => return None,
            },
        };
        match tls {
            rustls::Error::InvalidCertificate(why) => untrusted(match why {
                // The signature is that of another authority with the same name.
                CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                    format!("its certificate is signed {here}; {CA}")
                }
                CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                    "its certificate has expired; renew it there, or set this machine's clock right"
                        .to_owned()
                }
                CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                    "its certificate is not valid yet; set the clock right, here or where it was made"
                        .to_owned()
                }
                CertificateError::NotValidForName => not_for(host, &[]),
                CertificateError::NotValidForNameContext { presented, .. } => not_for(host, presented),
                other => format!("its certificate is not valid ({other}); have another made for it"),
            }),
            rustls::Error::AlertReceived(alert) if is_about_us(*alert) => refused(match &self.cert {
                None => format!("it wants a client certificate; {CERT}"),
                Some(file) => format!(
                    "it does not accept the client certificate in `{}` ({alert:?}); take one that its authorities signed",
                    file.display()
                ),
            }),
            rustls::Error::InvalidMessage(_) => untrusted(NO_TLS.to_owned()),
            other => untrusted(format!("{other}; see which TLS it offers: 1.2 or 1.3 is needed")),
        }
    }
}

/// The client library knows `#insecure`, which believes anybody.
pub(in crate::store) fn refuse_fragment(url: &str) -> Result<()> {
    let scheme = url.split(':').next().unwrap_or_default().to_ascii_lowercase();
    if !matches!(scheme.as_str(), "rediss" | "valkeys") || !url.contains('#') {
        return Ok(());
    }
    let why = "nothing follows a `#` (in a password it is written %23): a server that need not prove who it is could give \
               one lock to two; for a certificate of your own, name the file of its authority with `?ca=FILE`";
    Err(Error::invalid("store URL", format!("{scheme}:…#…"), why))
}

/// What lies under an error of the client library.
fn cause(error: &RedisError) -> Option<&(dyn std::error::Error + Send + Sync + 'static)> {
    let shared = error.source()?.downcast_ref::<Arc<dyn std::error::Error + Send + Sync>>()?;
    Some(&**shared)
}

fn not_for(host: &str, presented: &[String]) -> String {
    // `DnsName("a.example")` and the like, of which a reader wants what is in it.
    let bare =
        |name: &String| name.split(['(', ')', '"']).find(|part| part.contains(['.', ':'])).map(str::to_owned);
    let names: Vec<String> =
        presented.iter().map(|name| bare(name).unwrap_or_else(|| name.clone())).collect();
    let its = if names.is_empty() { "no name at all".to_owned() } else { names.join(", ") };
    format!(
        "its certificate is not for `{host}` but for {its}; use a name that is in it, or have it made for this one"
    )
}

/// Whether the other end speaks of our certificate, or of the lack of one.
fn is_about_us(alert: AlertDescription) -> bool {
    use AlertDescription::{
        AccessDenied, BadCertificate, CertificateExpired, CertificateRequired, CertificateRevoked,
        CertificateUnknown, DecryptError, HandshakeFailure, NoCertificate, UnknownCA, UnsupportedCertificate,
    };
    matches!(
        alert,
        AccessDenied
            | BadCertificate
            | CertificateExpired
            | CertificateRequired
            | CertificateRevoked
            | CertificateUnknown
            | DecryptError
            | HandshakeFailure
            | NoCertificate
            | UnknownCA
            | UnsupportedCertificate
    )
}

fn refuse<T>(file: &Path, why: &str) -> Result<T> {
    Err(Error::invalid("file in the store URL", file.display().to_string(), why))
}

fn read(file: &Path) -> Result<Vec<u8>> {
    std::fs::read(file).or_else(|error| refuse(file, &format!("it cannot be read: {error}")))
}

fn certificates(pem: &[u8], file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    match CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>() {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => {
            refuse(file, "there is no certificate in it; it has to be in PEM (`-----BEGIN CERTIFICATE-----`)")
        }
    }
}

fn identity(cert: &Path, key: &Path) -> Result<ClientTlsConfig> {
    let (client_cert, client_key) = (read(cert)?, read(key)?);
    let chain = certificates(&client_cert, cert)?;
    let Ok(private) = PrivateKeyDer::from_pem_slice(&client_key) else {
        return refuse(
            key,
            "there is no key in it that can be used; it has to be in PEM, and without a passphrase",
        );
    };
    match CertifiedKey::from_der(chain, private, &ring::default_provider()) {
        Ok(_) => Ok(ClientTlsConfig { client_cert, client_key }),
        Err(error) => {
            refuse(key, &format!("it does not go with the certificate `{}`: {error}", cert.display()))
        }
    }
}
