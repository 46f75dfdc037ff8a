//! The quota file.
#![allow(missing_docs)]
use std::time::Duration;
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TenantId(pub u16);
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Tier {
    Critical,
    #[default]
    Standard,
    Batch,
    Sheddable,
}
#[derive(Clone, Debug)]
pub struct Tenant {
    pub name: String,
    pub admin: bool,
    pub keys: Vec<String>,
    pub tier: Tier,
    pub deadline: Option<Duration>,
}
#[derive(Clone, Debug)]
pub struct SignedIn {
    pub tenant: TenantId,
    pub user: Option<String>,
    pub tier: Tier,
    pub deadline: Option<Duration>,
}
#[derive(Clone, Debug)]
pub struct Quotas {
    tenants: Vec<Tenant>,
}
impl Quotas {
    pub fn trusting() -> Self {
        Self {
            tenants: vec![Tenant {
                name: "default".into(),
                admin: true,
                keys: vec![],
                tier: Tier::Standard,
                deadline: None,
            }],
        }
    }
    pub fn strangers(&self) -> Option<TenantId> {
        Some(TenantId(0))
    }
    pub fn tenant(&self, id: TenantId) -> &Tenant {
        &self.tenants[usize::from(id.0)]
    }
    pub fn find(&self, name: &str) -> Option<TenantId> {
        self.tenants.iter().position(|t| t.name == name).map(|i| TenantId(i as u16))
    }
    pub fn sign_in(&self, _user: Option<&[u8]>, _password: &[u8]) -> Option<SignedIn> {
        None
    }
}

impl std::fmt::Display for Tier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Critical => "critical",
            Self::Standard => "standard",
            Self::Batch => "batch",
            Self::Sheddable => "sheddable",
        })
    }
}
impl std::str::FromStr for Tier {
    type Err = ();
    fn from_str(s: &str) -> Result<Self, ()> {
        match s {
            "critical" => Ok(Self::Critical),
            "standard" => Ok(Self::Standard),
            "batch" => Ok(Self::Batch),
            "sheddable" => Ok(Self::Sheddable),
            _ => Err(()),
        }
    }
}
