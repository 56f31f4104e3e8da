//! The attributes that distinguish this node's telemetry.

use opentelemetry::KeyValue;
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::EnvResourceDetector;

/// The standard variable for the service name.
const SERVICE_NAME_VARIABLE: &str = "OTEL_SERVICE_NAME";

/// The default attributes, then those of the environment (`OTEL_RESOURCE_ATTRIBUTES`,
/// `OTEL_SERVICE_NAME`), then the configured ones. Later ones win.
pub(super) fn resource(
    node: &str,
    configured: &[(String, String)],
) -> ResourceAttributesWithSchema {
    let usual = [
        ("service.name", "umawarden"),
        ("service.version", env!("CARGO_PKG_VERSION")),
        ("service.instance.id", node),
        ("host.name", node),
    ];
    let mut resource = Resource::builder_empty()
        .with_attributes(usual.map(|(name, value)| KeyValue::new(name, value.to_owned())))
        .with_detector(Box::new(EnvResourceDetector::new()));
    let named = std::env::var(SERVICE_NAME_VARIABLE).ok().filter(|name| !name.is_empty());
    if let Some(name) = named {
        resource = resource.with_service_name(name);
    }
    let configured =
        configured.iter().map(|(name, value)| KeyValue::new(name.clone(), value.clone()));
    (&resource.with_attributes(configured).build()).into()
}
