//! Flags and quota file to one checked, immutable configuration.

pub mod quotas;

pub use quotas::{QuotaError, Quotas, Tenant};

pub use crate::values::{TenantId, Tier};
