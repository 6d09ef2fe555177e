module.exports = 'a dependency';
