export default { handler: () => 'by default' };
