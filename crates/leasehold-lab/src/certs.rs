//! A certificate authority for TLS servers and their clients.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};

use crate::error::Result;
use crate::home::Home;
use crate::server::Tls;

/// A certificate authority that no client trusts by default. Its directory is removed on drop.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    home: Home,
}

impl Authority {
    pub fn new() -> Result<Self> {
        let (key, home) = (KeyPair::generate()?, Home::in_memory("lab")?);
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "an authority of the laboratory");
        fs::write(home.path().join("ca.pem"), params.self_signed(&key)?.pem())?;
        Ok(Authority { issuer: Issuer::new(params, key), home })
    }

    /// The authority's own certificate, in PEM.
    pub fn file(&self) -> PathBuf {
        self.home.path().join("ca.pem")
    }

    pub fn folder(&self) -> &Path {
        self.home.path()
    }

    /// Signs a server certificate for these host names or IP addresses.
    pub fn server(&self, names: &[&str]) -> Result<Tls> {
        self.signed("server", names, 2099)
    }

    /// Signs a server certificate that expired at the end of 2020.
    pub fn expired(&self, names: &[&str]) -> Result<Tls> {
        self.signed("expired", names, 2020)
    }

    /// Signs a client certificate. Returns the files of the certificate and the key.
    pub fn client(&self) -> Result<(PathBuf, PathBuf)> {
        let Tls { certificate, key, .. } = self.signed("client", &[], 2099)?;
        Ok((certificate, key))
    }

    fn signed(&self, file: &str, names: &[&str], last_year: i32) -> Result<Tls> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(names.iter().map(ToString::to_string).collect::<Vec<_>>())?;
        params.not_after = date_time_ymd(last_year, 12, 31);
        let certificate = params.signed_by(&key, &self.issuer)?;
        let place = |end: &str| self.home.path().join(format!("{file}.{end}"));
        fs::write(place("crt"), certificate.pem())?;
        fs::write(place("key"), key.serialize_pem())?;
        Ok(Tls { certificate: place("crt"), key: place("key"), authority: self.file(), asks_clients: false })
    }
}
