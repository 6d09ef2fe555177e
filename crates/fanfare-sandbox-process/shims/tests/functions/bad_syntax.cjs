exports.handler = (event =>
