//! The admin page `/explain`: the answer of `QOS EXPLAIN`, for operators. They name a tenant without its
//! password: readers of the admin port may see everything that is shown about tenants, and no command is
//! executed.

use super::http::{Response, Status};
use crate::protocol::request::split_line;
use crate::shard::Explained;
use crate::values::percent_decoded;

/// A query of an operator: how weir would treat this command of this tenant's client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainQuery {
    /// The name of the tenant on whose behalf the command would be sent.
    pub tenant: String,
    /// The command and its arguments, as in a request.
    pub words: Vec<Vec<u8>>,
}

impl ExplainQuery {
    /// Parses the query string of the page `/explain`. The error is the HTTP reply.
    pub fn parse(query: &str) -> Result<Self, Response> {
        Self::read(query).map_err(|problem| Response::problem(Status::BadRequest, &problem, None))
    }

    fn read(query: &str) -> Result<Self, String> {
        let wanted = "tenant=NAME&command=WORDS is expected, such as tenant=default&command=GET%20key";
        let (mut tenant, mut words) = (None, None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            // Decoded as in HTML forms, where `+` is a space.
            let value = percent_decoded(&value.replace('+', " "))
                .ok_or_else(|| format!("{name}: behind each % two hexadecimal digits are expected"))?;
            match name {
                "tenant" => tenant = Some(String::from_utf8(value).map_err(|_| "tenant: text is expected")?),
                "command" => {
                    let line = split_line(&value).ok_or("command: a quote is not closed")?;
                    words = Some(line).filter(|words| !words.is_empty());
                }
                _ => return Err(format!("{name} is not known here: {wanted}")),
            }
        }
        let (tenant, words) = tenant.zip(words).ok_or(wanted)?;
        Ok(Self { tenant, words })
    }
}

/// Makes the reply to a request for `/explain`: the explanation of how weir would treat a command, or the
/// description of a problem (status 400).
pub fn explained(told: Result<Explained, String>) -> Response {
    match told {
        Ok(told) => Response::json(Status::Ok, &told),
        Err(problem) => Response::problem(Status::BadRequest, &problem, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_read_as_it_would_be_typed() {
        let read = ExplainQuery::read("tenant=acme&command=SET+k%3a1+%22a%20%5Cx00%22").expect("right");
        assert_eq!(read.tenant, "acme");
        assert_eq!(read.words, [&b"SET"[..], b"k:1", b"a \0"]);
    }

    #[test]
    fn what_makes_no_sense_is_told() {
        for (query, problem) in [
            ("", "tenant=NAME&command=WORDS is expected"),
            ("tenant=a", "tenant=NAME&command=WORDS is expected"),
            ("tenant=a&command=+", "tenant=NAME&command=WORDS is expected"),
            ("tenant=a&command=%2", "command: behind each % two"),
            ("tenant=a&command=%zz", "command: behind each % two"),
            ("tenant=%ff&command=GET", "tenant: text is expected"),
            ("tenant=a&command=%22", "command: a quote is not closed"),
            ("user=a", "user is not known here"),
        ] {
            let told = ExplainQuery::read(query).expect_err("it is wrong");
            assert!(told.starts_with(problem), "{query}: {told}");
        }
    }
}
