//! Flags and quota file to one checked, immutable configuration.

pub mod quotas;

pub use quotas::{Quotas, Tenant, TenantId, Tier};
