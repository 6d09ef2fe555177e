//! The control API's JSON documents, their checks and their translation to and from the domain.
